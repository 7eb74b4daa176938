// What every backend must do, for several numbers of ranks.
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <latch>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "absl/time/clock.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/status.h"
#include "comm/communicator.h"
#include "comm/tree_reduction.h"
#include "rank_group.h"

namespace switchyard::comm {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

// Small slots: exchanges of 4 KiB, rings of 1 KiB, so that moderate counts take several pieces.
CommOptions SmallSlots() {
  CommOptions options;
  options.group_id = "conformance";
  options.epoch = 7;
  options.slot_bytes = 1024;
  options.num_slots = 4;
  options.op_timeout = absl::Seconds(60);  // of a loaded machine under a sanitizer
  return options;
}

// Every type is filled with bytes that depend on rank and place; floats get values of many sizes,
// so that each order of addition has another sum.
std::vector<std::byte> Values(int rank, int64_t count, DataType type, int salt = 0) {
  std::mt19937 random(static_cast<uint32_t>(1000 * salt + rank));
  std::vector<std::byte> values(static_cast<size_t>(count * BytesOf(type)));
  std::uniform_real_distribution<float> mantissa(-1.0f, 1.0f);
  std::uniform_int_distribution<int> exponent(-6, 6);
  for (int64_t i = 0; i < count; ++i) {
    const float value = std::ldexp(mantissa(random), exponent(random));
    const uint32_t whole = static_cast<uint32_t>(random());
    std::byte* at = values.data() + i * BytesOf(type);
    switch (type) {
      case DataType::kF32:
        std::memcpy(at, &value, 4);
        break;
      case DataType::kI32:
        std::memcpy(at, &whole, 4);
        break;
      case DataType::kU8:
        *at = static_cast<std::byte>(whole);
        break;
      case DataType::kF16: {
        const uint16_t half = HalfFromFloat(value);
        std::memcpy(at, &half, 2);
        break;
      }
      case DataType::kBF16: {
        const uint16_t half = BFloat16FromFloat(value);
        std::memcpy(at, &half, 2);
        break;
      }
    }
  }
  return values;
}

// The reduction that tree_reduction_test holds against sums written out by hand.
std::vector<std::byte> Reduced(const std::vector<std::vector<std::byte>>& parts, DataType type,
                               RedOp op) {
  std::vector<const std::byte*> pointers;
  for (const auto& part : parts) pointers.push_back(part.data());
  std::vector<std::byte> out(parts[0].size());
  TreeReduce(pointers, out.data(), static_cast<int64_t>(out.size()) / BytesOf(type), type, op);
  return out;
}

const DataType kTypes[] = {DataType::kF32, DataType::kF16, DataType::kBF16, DataType::kI32,
                           DataType::kU8};
// 0, 1, odd, around the slot of an exchange for 4-byte elements, several slots.
const int64_t kCounts[] = {0, 1, 7, 257, 1023, 1024, 1025, 5003};

class ConformanceTest : public testing::TestWithParam<std::tuple<BackendKind, int>> {
 protected:
  BackendKind kind() const { return std::get<0>(GetParam()); }
  int nranks() const { return std::get<1>(GetParam()); }
  Ranks Create(const CommOptions& options = SmallSlots()) {
    return CreateRanks(kind(), nranks(), options);
  }
  bool Alone() const { return nranks() == 1; }

  std::vector<std::vector<std::byte>> AllValues(int64_t count, DataType type, int salt = 0) const {
    std::vector<std::vector<std::byte>> all;
    for (int rank = 0; rank < nranks(); ++rank) all.push_back(Values(rank, count, type, salt));
    return all;
  }
};

#define EXPECT_OK(expression)                       \
  do {                                              \
    const absl::Status status_of_it = (expression); \
    EXPECT_TRUE(status_of_it.ok()) << status_of_it; \
  } while (false)
#define EXPECT_CODE(expression, expected)                     \
  do {                                                        \
    const absl::Status status_of_it = (expression);           \
    EXPECT_EQ(status_of_it.code(), expected) << status_of_it; \
  } while (false)

TEST_P(ConformanceTest, AllReduceGivesTheBitsOfTheTreeOnAllRanks) {
  const Ranks ranks = Create();
  for (DataType type : kTypes) {
    for (RedOp op : {RedOp::kSum, RedOp::kMax}) {
      for (int64_t count : kCounts) {
        const auto values = AllValues(count, type);
        const auto expected = Reduced(values, type, op);
        RunRanks(ranks, [&](Communicator& comm) {
          const auto& mine = values[static_cast<size_t>(comm.rank())];
          std::vector<std::byte> out(mine.size());
          EXPECT_OK(comm.AllReduce(mine.data(), out.data(), count, type, op));
          EXPECT_EQ(out, expected) << Name(type) << Name(op) << count << " on " << comm.rank();
          std::vector<std::byte> in_place = mine;
          EXPECT_OK(comm.AllReduce(in_place.data(), in_place.data(), count, type, op));
          EXPECT_EQ(in_place, expected) << Name(type) << Name(op) << count;
        });
      }
    }
  }
}

TEST_P(ConformanceTest, ReduceWritesTheRootOnly) {
  const Ranks ranks = Create();
  for (int root = 0; root < nranks(); ++root) {
    for (int64_t count : kCounts) {
      const auto values = AllValues(count, DataType::kF32, root);
      const auto expected = Reduced(values, DataType::kF32, RedOp::kSum);
      RunRanks(ranks, [&](Communicator& comm) {
        const auto& mine = values[static_cast<size_t>(comm.rank())];
        std::vector<std::byte> out(mine.size(), std::byte{0xee});
        const auto untouched = out;
        EXPECT_OK(comm.Reduce(mine.data(), out.data(), count, DataType::kF32, RedOp::kSum, root));
        EXPECT_EQ(out, comm.rank() == root ? expected : untouched);
      });
    }
  }
  RunRanks(ranks, [&](Communicator& comm) {
    float value = 1, sum = 0;
    EXPECT_OK(
        comm.Reduce(&value, comm.rank() == 0 ? &sum : nullptr, 1, DataType::kF32, RedOp::kSum, 0));
    if (comm.rank() == 0) {
      EXPECT_EQ(sum, static_cast<float>(nranks()));
    }
  });
}

TEST_P(ConformanceTest, AllGatherPlacesByRank) {
  const Ranks ranks = Create();
  for (DataType type : {DataType::kF32, DataType::kU8}) {
    for (int64_t count : kCounts) {
      const auto values = AllValues(count, type);
      std::vector<std::byte> expected;
      for (const auto& part : values) expected.insert(expected.end(), part.begin(), part.end());
      RunRanks(ranks, [&](Communicator& comm) {
        const auto& mine = values[static_cast<size_t>(comm.rank())];
        std::vector<std::byte> out(expected.size());
        EXPECT_OK(comm.AllGather(mine.data(), out.data(), count, type));
        EXPECT_EQ(out, expected);
        std::vector<std::byte> in_place(expected.size());
        std::byte* my_part = in_place.data() + static_cast<size_t>(comm.rank()) * mine.size();
        std::copy(mine.begin(), mine.end(), my_part);
        EXPECT_OK(comm.AllGather(my_part, in_place.data(), count, type));
        EXPECT_EQ(in_place, expected);
      });
    }
  }
}

TEST_P(ConformanceTest, ReduceScatterGivesEachRankItsRow) {
  const Ranks ranks = Create();
  for (DataType type : kTypes) {
    for (int64_t count : kCounts) {
      const auto values = AllValues(count * nranks(), type);
      const auto sum = Reduced(values, type, RedOp::kSum);
      RunRanks(ranks, [&](Communicator& comm) {
        std::vector<std::byte> in = values[static_cast<size_t>(comm.rank())];
        const int64_t row_bytes = count * BytesOf(type);
        std::vector<std::byte> out(static_cast<size_t>(row_bytes));
        const std::vector<std::byte> expected(sum.begin() + comm.rank() * row_bytes,
                                              sum.begin() + (comm.rank() + 1) * row_bytes);
        EXPECT_OK(comm.ReduceScatter(in.data(), out.data(), count, type, RedOp::kSum));
        EXPECT_EQ(out, expected) << Name(type) << count;
        EXPECT_OK(comm.ReduceScatter(in.data(), in.data(), count, type, RedOp::kSum));
        in.resize(static_cast<size_t>(row_bytes));
        EXPECT_EQ(in, expected) << "in place" << Name(type) << count;
      });
    }
  }
}

TEST_P(ConformanceTest, AllToAllExchangesRowsAndColumns) {
  const Ranks ranks = Create();
  for (int64_t count : kCounts) {
    const auto values = AllValues(count * nranks(), DataType::kI32);
    RunRanks(ranks, [&](Communicator& comm) {
      const int64_t row_bytes = count * 4;
      std::vector<std::byte> expected;
      for (const auto& part : values) {
        expected.insert(expected.end(), part.begin() + comm.rank() * row_bytes,
                        part.begin() + (comm.rank() + 1) * row_bytes);
      }
      std::vector<std::byte> buffer = values[static_cast<size_t>(comm.rank())];
      std::vector<std::byte> out(buffer.size());
      EXPECT_OK(comm.AllToAll(buffer.data(), out.data(), count, DataType::kI32));
      EXPECT_EQ(out, expected) << count;
      EXPECT_OK(comm.AllToAll(buffer.data(), buffer.data(), count, DataType::kI32));
      EXPECT_EQ(buffer, expected) << "in place" << count;
    });
  }
}

TEST_P(ConformanceTest, BroadcastReachesAllFromEveryRoot) {
  const Ranks ranks = Create();
  RunRanks(ranks, [&](Communicator& comm) {
    for (int root = 0; root < nranks(); ++root) {
      for (int64_t count : kCounts) {
        const auto expected = Values(root, count, DataType::kF32);
        auto buffer = comm.rank() == root ? expected : Values(99, count, DataType::kF32);
        EXPECT_OK(comm.Broadcast(buffer.data(), count, DataType::kF32, root));
        EXPECT_EQ(buffer, expected) << "root" << root << "count" << count;
      }
    }
  });
}

TEST_P(ConformanceTest, ARootRunsAheadOfItsReaders) {
  const Ranks ranks = Create();
  std::latch root_is_done(1);
  RunRanks(ranks, [&](Communicator& comm) {
    // Four headers of one piece each fit the ring; the readers begin when the root has sent all.
    if (comm.rank() != 0) root_is_done.wait();
    for (int header = 0; header < 4; ++header) {
      int32_t value = comm.rank() == 0 ? header : -1;
      EXPECT_OK(comm.Broadcast(&value, 1, DataType::kI32, 0));
      EXPECT_EQ(value, header);
    }
    if (comm.rank() == 0) root_is_done.count_down();
  });
}

TEST_P(ConformanceTest, ManyBroadcastsKeepTheirOrderWhateverWaits) {
  const Ranks ranks = Create();
  RunRanks(ranks, [&](Communicator& comm) {
    for (int i = 0; i < 300; ++i) {
      const int root = i % 7 == 0 ? nranks() - 1 : 0;
      int32_t value = comm.rank() == root ? i : -1;
      EXPECT_OK(comm.Broadcast(&value, 1, DataType::kI32, root));
      EXPECT_EQ(value, i);
      if (i % 50 == 0) EXPECT_OK(comm.Barrier(absl::InfiniteFuture()));
    }
  });
}

TEST_P(ConformanceTest, PiecesGoFromStageToStage) {
  const Ranks ranks = Create();
  RunRanks(ranks, [&](Communicator& comm) {
    for (int64_t count : kCounts) {
      for (int turn = 0; turn < 3; ++turn) {
        auto residual = Values(50 + turn, count, DataType::kF32);
        const auto expected = residual;
        if (comm.rank() > 0) {
          std::fill(residual.begin(), residual.end(), std::byte{0});
          EXPECT_OK(comm.Recv(residual.data(), count, DataType::kF32, comm.rank() - 1));
          EXPECT_EQ(residual, expected) << count;
        }
        if (comm.rank() + 1 < nranks()) {
          EXPECT_OK(comm.Send(residual.data(), count, DataType::kF32, comm.rank() + 1));
        }
      }
    }
  });
}

TEST_P(ConformanceTest, ASenderRunsAheadOfItsReader) {
  if (Alone()) GTEST_SKIP() << "one rank sends nothing";
  const Ranks ranks = Create();
  std::latch sent(1);
  RunRanks(ranks, [&](Communicator& comm) {
    if (comm.rank() > 1) return;
    if (comm.rank() == 1) sent.wait();
    for (int32_t i = 0; i < 4; ++i) {
      int32_t value = i;
      if (comm.rank() == 0) {
        EXPECT_OK(comm.Send(&value, 1, DataType::kI32, 1));
      } else {
        value = -1;
        EXPECT_OK(comm.Recv(&value, 1, DataType::kI32, 0));
        EXPECT_EQ(value, i);
      }
    }
    if (comm.rank() == 0) sent.count_down();
  });
}

TEST_P(ConformanceTest, AGroupExchangesInACircleWithoutBlocking) {
  if (Alone()) GTEST_SKIP() << "one rank sends nothing";
  const Ranks ranks = Create();
  RunRanks(ranks, [&](Communicator& comm) {
    // 20,000 bytes: five times what a ring holds. Everybody sends first.
    const int64_t count = 5000;
    const int next = (comm.rank() + 1) % nranks();
    const int last = (comm.rank() + nranks() - 1) % nranks();
    const auto mine = Values(comm.rank(), count, DataType::kF32);
    const auto small = Values(comm.rank(), 3, DataType::kF32, 1);
    std::vector<std::byte> got(mine.size()), got_small(small.size());
    EXPECT_OK(comm.GroupStart());
    EXPECT_OK(comm.Send(mine.data(), count, DataType::kF32, next));
    EXPECT_OK(comm.Send(small.data(), 3, DataType::kF32, next));
    EXPECT_OK(comm.Recv(got.data(), count, DataType::kF32, last));
    EXPECT_OK(comm.Recv(got_small.data(), 3, DataType::kF32, last));
    EXPECT_OK(comm.GroupEnd());
    EXPECT_EQ(got, Values(last, count, DataType::kF32));
    EXPECT_EQ(got_small, Values(last, 3, DataType::kF32, 1));
  });
}

TEST_P(ConformanceTest, OperationsOfAllKindsMix) {
  const Ranks ranks = Create();
  RunRanks(ranks, [&](Communicator& comm) {
    const float n = static_cast<float>(nranks());
    for (int i = 0; i < 40; ++i) {
      std::vector<float> x(600, static_cast<float>(i));
      EXPECT_OK(comm.AllReduce(x.data(), x.data(), 600, DataType::kF32, RedOp::kSum));
      EXPECT_EQ(x[599], n * static_cast<float>(i));
      std::vector<float> header(5, comm.rank() == i % nranks() ? static_cast<float>(i) : -1.0f);
      EXPECT_OK(comm.Broadcast(header.data(), 5, DataType::kF32, i % nranks()));
      EXPECT_EQ(header[4], static_cast<float>(i));
      EXPECT_OK(comm.Reduce(x.data(), x.data(), 600, DataType::kF32, RedOp::kMax, i % nranks()));
      EXPECT_OK(comm.Barrier(absl::InfiniteFuture()));
    }
    EXPECT_OK(comm.Health());
    EXPECT_OK(comm.Wait({}, absl::InfiniteFuture()));
  });
}

// ---- wrong calls --------------------------------------------------------------------------------

TEST_P(ConformanceTest, BadArgumentsAreRefusedAndLeaveItUsable) {
  const Ranks ranks = Create();
  RunRanks(ranks, [&](Communicator& comm) {
    float x = 1;
    int device = 0;
    const auto bad = StatusCode::kInvalidArgument;
    EXPECT_CODE(comm.AllReduce(nullptr, &x, 1, DataType::kF32, RedOp::kSum), bad);
    EXPECT_CODE(comm.AllReduce(&x, nullptr, 1, DataType::kF32, RedOp::kSum), bad);
    EXPECT_CODE(comm.AllReduce(&x, &x, -1, DataType::kF32, RedOp::kSum), bad);
    EXPECT_CODE(comm.AllReduce(&x, &x, int64_t{1} << 62, DataType::kF32, RedOp::kSum), bad);
    EXPECT_CODE(comm.AllReduce(&x, &x, 1, static_cast<DataType>(9), RedOp::kSum), bad);
    EXPECT_CODE(comm.AllReduce(&x, &x, 1, DataType::kF32, RedOp::kSum, Stream{&device}), bad);
    EXPECT_CODE(comm.Broadcast(&x, 1, DataType::kF32, nranks()), bad);
    EXPECT_CODE(comm.Broadcast(&x, 1, DataType::kF32, -1), bad);
    EXPECT_CODE(comm.Reduce(&x, &x, 1, DataType::kF32, RedOp::kSum, nranks()), bad);
    EXPECT_CODE(comm.Send(&x, 1, DataType::kF32, comm.rank()), bad);
    EXPECT_CODE(comm.Recv(&x, 1, DataType::kF32, nranks()), bad);
    EXPECT_CODE(comm.GroupEnd(), bad);
    EXPECT_OK(comm.GroupStart());
    EXPECT_CODE(comm.GroupStart(), bad);
    EXPECT_CODE(comm.Barrier(absl::InfiniteFuture()), bad);
    EXPECT_OK(comm.GroupEnd());
    EXPECT_CODE(comm.Register(nullptr, 8, MemSpace::kHost).status(), bad);
    EXPECT_CODE(comm.Register(&x, 4, MemSpace::kDevice).status(), bad);
    EXPECT_OK(comm.Register(&x, 4, MemSpace::kHost).status());
    EXPECT_OK(comm.AllReduce(nullptr, nullptr, 0, DataType::kF32, RedOp::kSum));
    EXPECT_OK(comm.AllReduce(&x, &x, 1, DataType::kF32, RedOp::kSum));
    EXPECT_EQ(x, static_cast<float>(nranks()));
    EXPECT_EQ(comm.Stats().last_seq, 2u);
  });
}

// All ranks fail with `code`, with the same message from then on, and say `text`.
void ExpectFailed(Communicator& comm, StatusCode code, const std::string& text) {
  const absl::Status first = comm.Health();
  EXPECT_EQ(first.code(), code) << "rank " << comm.rank() << ": " << first;
  EXPECT_THAT(std::string(Message(first)), HasSubstr(text)) << "rank " << comm.rank();
  float x = 0;
  EXPECT_EQ(comm.AllReduce(&x, &x, 1, DataType::kF32, RedOp::kSum), first);
  EXPECT_EQ(comm.Broadcast(&x, 1, DataType::kF32, 0), first);
  EXPECT_EQ(comm.Barrier(absl::InfiniteFuture()), first);
  EXPECT_EQ(comm.GroupStart(), first);
  comm.Abort(absl::InternalError("a later reason"));
  EXPECT_EQ(comm.Health(), first);
}

TEST_P(ConformanceTest, AnotherOperationOnOneRankIsNamed) {
  if (Alone()) GTEST_SKIP() << "one rank agrees with itself";
  struct Case {
    const char* name;
    std::function<absl::Status(Communicator&, float*)> usual, other;
  };
  const auto all_reduce = [](int64_t count, DataType type, RedOp op) {
    return [=](Communicator& comm, float* x) { return comm.AllReduce(x, x, count, type, op); };
  };
  const auto broadcast = [](int root) {
    return [=](Communicator& comm, float* x) { return comm.Broadcast(x, 2, DataType::kF32, root); };
  };
  const auto reduce = [](int root) {
    return [=](Communicator& comm, float* x) {
      return comm.Reduce(x, x, 2, DataType::kF32, RedOp::kSum, root);
    };
  };
  const auto usual = all_reduce(2, DataType::kF32, RedOp::kSum);
  const Case kCases[] = {
      {"count", usual, all_reduce(1, DataType::kF32, RedOp::kSum)},
      {"type", usual, all_reduce(2, DataType::kI32, RedOp::kSum)},
      {"redop", usual, all_reduce(2, DataType::kF32, RedOp::kMax)},
      {"kind", usual,
       [](Communicator& comm, float*) { return comm.Barrier(absl::InfiniteFuture()); }},
      {"root of reduce", reduce(0), reduce(1)},
      {"a ring against an exchange", usual, broadcast(0)},
      {"skipped", usual,
       [&](Communicator& comm, float* x) {
         (void)comm.AllReduce(x, x, 0, DataType::kF32, RedOp::kSum);
         return comm.AllReduce(x, x, 2, DataType::kF32, RedOp::kSum);
       }},
  };
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    const Ranks ranks = Create();
    RunRanks(ranks, [&](Communicator& comm) {
      float x[64] = {};
      EXPECT_CODE((comm.rank() == 1 ? c.other : c.usual)(comm, x), StatusCode::kFailedPrecondition);
      ExpectFailed(comm, StatusCode::kFailedPrecondition, "ranks issue different operations");
      EXPECT_THAT(std::string(Message(comm.Health())), HasSubstr("rank 1 "));
    });
  }
}

TEST_P(ConformanceTest, ADeadlineNamesWhoDidNotCome) {
  if (Alone()) GTEST_SKIP() << "one rank waits for nobody";
  CommOptions options = SmallSlots();
  options.op_timeout = absl::Milliseconds(150);
  const Ranks ranks = Create(options);
  const int absent = nranks() - 1;
  RunRanks(ranks, [&](Communicator& comm) {
    if (comm.rank() == absent) return;
    float x = 0;
    const absl::Time begin = absl::Now();
    EXPECT_CODE(comm.AllReduce(&x, &x, 1, DataType::kF32, RedOp::kSum),
                StatusCode::kDeadlineExceeded);
    EXPECT_LT(absl::Now() - begin, absl::Seconds(20));
    ExpectFailed(comm, StatusCode::kDeadlineExceeded, "all_reduce #1");
    EXPECT_THAT(std::string(Message(comm.Health())),
                HasSubstr(fmt::format("waited for rank {}", absent)));
  });
  ExpectFailed(*ranks[static_cast<size_t>(absent)], StatusCode::kDeadlineExceeded, "all_reduce #1");
}

TEST_P(ConformanceTest, EveryKindOfWaitHasADeadline) {
  if (Alone()) GTEST_SKIP() << "one rank waits for nobody";
  CommOptions options = SmallSlots();
  options.op_timeout = absl::Milliseconds(50);
  using Call = std::function<absl::Status(Communicator&)>;
  float x[300] = {};
  const Call kCalls[] = {
      [&](Communicator& comm) { return comm.Recv(x, 1, DataType::kF32, 1); },
      [&](Communicator& comm) { return comm.Broadcast(x, 1, DataType::kF32, 1); },
      [](Communicator& comm) { return comm.Barrier(absl::Now() + absl::Milliseconds(50)); },
      // The fifth piece finds no room.
      [&](Communicator& comm) {
        for (int i = 0; i < 4; ++i) EXPECT_OK(comm.Send(x, 1, DataType::kF32, 1));
        return comm.Send(x, 1, DataType::kF32, 1);
      },
      [&](Communicator& comm) {
        for (int i = 0; i < 4; ++i) EXPECT_OK(comm.Broadcast(x, 1, DataType::kF32, 0));
        return comm.Broadcast(x, 1, DataType::kF32, 0);
      },
      [&](Communicator& comm) {
        EXPECT_OK(comm.GroupStart());
        EXPECT_OK(comm.Recv(x, 1, DataType::kF32, 1));
        return comm.GroupEnd();
      },
  };
  for (const Call& call : kCalls) {
    const Ranks ranks = Create(options);
    EXPECT_CODE(call(*ranks[0]), StatusCode::kDeadlineExceeded);
  }
}

TEST_P(ConformanceTest, AbortReleasesAllThatWait) {
  if (Alone()) GTEST_SKIP() << "one rank waits for nobody";
  CommOptions options = SmallSlots();
  options.op_timeout = absl::InfiniteDuration();
  using Call = std::function<absl::Status(Communicator&)>;
  const Call kCalls[] = {
      [](Communicator& comm) {
        float x = 0;
        return comm.AllReduce(&x, &x, 1, DataType::kF32, RedOp::kSum);
      },
      [](Communicator& comm) {
        float x = 0;
        return comm.Broadcast(&x, 1, DataType::kF32, comm.nranks() - 1);
      },
  };
  for (const Call& call : kCalls) {
    const Ranks ranks = Create(options);
    // The last rank never enters; another thread aborts rank 0 while the others wait.
    std::latch entered(nranks() - 1);
    std::thread watchdog([&] {
      entered.wait();
      ranks[0]->Abort(absl::UnavailableError("the coordinator says: epoch 8"));
    });
    RunRanks(ranks, [&](Communicator& comm) {
      if (comm.rank() == nranks() - 1) return;
      entered.count_down();
      EXPECT_CODE(call(comm), StatusCode::kAborted);
      ExpectFailed(comm, StatusCode::kAborted, "the coordinator says: epoch 8");
    });
    watchdog.join();
    float x = 0;
    EXPECT_CODE(ranks.back()->AllReduce(&x, &x, 1, DataType::kF32, RedOp::kSum),
                StatusCode::kAborted);
  }
}

TEST_P(ConformanceTest, ARankThatLeavesIsNamed) {
  if (Alone()) GTEST_SKIP() << "one rank waits for nobody";
  Ranks ranks = Create();
  const int leaver = nranks() - 1;
  const auto last_words = [&](Communicator& comm) {
    int32_t value = comm.rank() == leaver ? 42 : 0;
    EXPECT_OK(comm.Broadcast(&value, 1, DataType::kI32, leaver));
    EXPECT_EQ(value, 42);
  };
  last_words(*ranks[static_cast<size_t>(leaver)]);
  ranks[static_cast<size_t>(leaver)].reset();
  OnThreads(nranks() - 1, [&](int rank) {
    Communicator& comm = *ranks[static_cast<size_t>(rank)];
    last_words(comm);  // what it sent before it left still comes
    EXPECT_CODE(comm.Barrier(absl::InfiniteFuture()), StatusCode::kUnavailable);
    EXPECT_THAT(std::string(Message(comm.Health())), HasSubstr(fmt::format("rank {}", leaver)));
  });
}

// ---- forming ------------------------------------------------------------------------------------

// Gives each exchange of a rank the same key on all ranks, as a coordinator might that confuses
// epochs.
class CarelessRendezvous final : public Rendezvous {
 public:
  explicit CarelessRendezvous(Rendezvous& inner) : inner_(inner) {}
  absl::StatusOr<std::vector<std::string>> Exchange(std::string_view, const std::string& mine,
                                                    absl::Time deadline) override {
    return inner_.Exchange(std::to_string(num_exchanges_++), mine, deadline);
  }

 private:
  Rendezvous& inner_;
  int num_exchanges_ = 0;
};

TEST_P(ConformanceTest, AStaleEpochIsRefused) {
  if (Alone()) GTEST_SKIP() << "one rank agrees with itself";
  LocalRendezvous rendezvous(nranks());
  OnThreads(nranks(), [&](int rank) {
    CommOptions options = SmallSlots();
    options.rank = rank;
    options.nranks = nranks();
    options.epoch = rank == 1 ? 6 : 7;
    CarelessRendezvous careless(rendezvous.of(rank));
    const auto created = CreateCommunicator(kind(), options, careless);
    EXPECT_CODE(created.status(), StatusCode::kAborted);
    EXPECT_THAT(std::string(Message(created.status())), HasSubstr("6 is stale"));
  });
}

TEST_P(ConformanceTest, RanksWithOtherOptionsAreRefused) {
  if (Alone()) GTEST_SKIP() << "one rank agrees with itself";
  LocalRendezvous rendezvous(nranks());
  OnThreads(nranks(), [&](int rank) {
    CommOptions options = SmallSlots();
    options.rank = rank;
    options.nranks = nranks();
    if (rank == 1) options.num_slots = 5;
    const auto created = CreateCommunicator(kind(), options, rendezvous.of(rank));
    EXPECT_CODE(created.status(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(Message(created.status())), HasSubstr("differ in slots"));
  });
}

TEST_P(ConformanceTest, ARankThatDoesNotComeIsNamed) {
  if (Alone()) GTEST_SKIP() << "one rank waits for nobody";
  LocalRendezvous rendezvous(nranks());
  CommOptions options = SmallSlots();
  options.nranks = nranks();
  options.init_timeout = absl::Milliseconds(50);
  const auto created = CreateCommunicator(kind(), options, rendezvous.of(0));
  EXPECT_CODE(created.status(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(Message(created.status())), HasSubstr(" 1"));
}

TEST_P(ConformanceTest, BadOptionsAreRefused) {
  LocalRendezvous rendezvous(nranks());
  const std::function<void(CommOptions&)> kChanges[] = {
      [](CommOptions& options) { options.rank = options.nranks; },
      [](CommOptions& options) { options.rank = -1; },
      [](CommOptions& options) { options.nranks = 0; },
      [](CommOptions& options) { options.nranks = 65; },
      [](CommOptions& options) { options.slot_bytes = 1000; },
      [](CommOptions& options) { options.num_slots = 0; },
      [](CommOptions& options) { options.op_timeout = absl::ZeroDuration(); },
      [](CommOptions& options) { options.num_compute_threads = 0; },
      [](CommOptions& options) { options.fault_rules = "0->1 wobble"; },
      [](CommOptions& options) { options.fault_rules = "0->77 drop"; },
  };
  for (const auto& change : kChanges) {
    CommOptions options = SmallSlots();
    options.nranks = nranks();
    change(options);
    EXPECT_CODE(CreateCommunicator(kind(), options, rendezvous.of(0)).status(),
                StatusCode::kInvalidArgument);
  }
}

// ---- counters and faults ------------------------------------------------------------------------

TEST_P(ConformanceTest, CountsCallsAndBytesOfPairs) {
  const Ranks ranks = Create();
  RunRanks(ranks, [&](Communicator& comm) {
    const int64_t n = nranks();
    std::vector<float> x(3000), y(static_cast<size_t>(3000 * n));
    EXPECT_OK(comm.AllReduce(x.data(), x.data(), 3000, DataType::kF32, RedOp::kSum));
    EXPECT_OK(comm.AllReduce(x.data(), x.data(), 10, DataType::kF32, RedOp::kSum));
    EXPECT_OK(comm.AllToAll(y.data(), y.data(), 500, DataType::kF32));
    EXPECT_OK(comm.Reduce(x.data(), x.data(), 100, DataType::kF32, RedOp::kSum, 0));
    EXPECT_OK(comm.Broadcast(x.data(), 700, DataType::kF32, 0));
    if (comm.rank() == 0 && n > 1) EXPECT_OK(comm.Send(x.data(), 9, DataType::kU8, 1));
    if (comm.rank() == 1) EXPECT_OK(comm.Recv(x.data(), 9, DataType::kU8, 0));
    const CommStats stats = comm.Stats();
    const OpStats& reduces = stats.ops[static_cast<size_t>(OpKind::kAllReduce)];
    EXPECT_EQ(reduces.num_calls, 2);
    EXPECT_EQ(reduces.num_bytes, 12'040);
    int64_t in_histogram = 0;
    for (int64_t calls : reduces.time_histogram) in_histogram += calls;
    EXPECT_EQ(in_histogram, 2);
    EXPECT_EQ(stats.last_seq, 5u);
    ASSERT_EQ(stats.peers.size(), static_cast<size_t>(n));
    int64_t sent = 0, received = 0;
    for (int peer = 0; peer < n; ++peer) {
      const PeerTotals& pair = stats.peers[static_cast<size_t>(peer)];
      int64_t to_peer = 12'040 + 2000, from_peer = 12'040 + 2000;
      if (peer == 0) to_peer += 400;
      if (comm.rank() == 0) from_peer += 400;
      if (comm.rank() == 0) to_peer += 2800;
      if (peer == 0) from_peer += 2800;
      if (comm.rank() == 0 && peer == 1) to_peer += 9;
      if (comm.rank() == 1 && peer == 0) from_peer += 9;
      if (peer == comm.rank()) to_peer = from_peer = 0;
      EXPECT_EQ(pair.sent_bytes, to_peer) << comm.rank() << " to " << peer;
      EXPECT_EQ(pair.received_bytes, from_peer) << comm.rank() << " from " << peer;
      sent += to_peer;
      received += from_peer;
      EXPECT_EQ(comm.TotalsOfPeer(peer).sent_bytes, to_peer);
    }
    EXPECT_EQ(stats.totals.sent_bytes, sent);
    EXPECT_EQ(stats.totals.received_bytes, received);
    EXPECT_EQ(comm.Totals().num_calls, comm.rank() <= 1 && n > 1 ? 6 : 5);
    double seconds = 0;
    for (const OpStats& op : stats.ops) seconds += op.wait_seconds + op.transfer_seconds;
    EXPECT_DOUBLE_EQ(seconds, stats.totals.wait_seconds + stats.totals.transfer_seconds);
  });
}

TEST_P(ConformanceTest, ASlowLinkShowsAsTransferOfItsPairAndAsWaitingOfOthers) {
  if (nranks() < 2) GTEST_SKIP() << "one rank has no links";
  CommOptions options = SmallSlots();
  options.fault_rules = "0->1 delay=20ms";
  const Ranks ranks = Create(options);
  RunRanks(ranks, [&](Communicator& comm) {
    EXPECT_OK(comm.Barrier(absl::InfiniteFuture()));
    const CommTotals before = comm.Totals();
    const PeerTotals pair_before = comm.TotalsOfPeer(0);
    for (int i = 0; i < 6; ++i) {
      float x = 1;
      EXPECT_OK(comm.AllReduce(&x, &x, 1, DataType::kF32, RedOp::kSum));
      EXPECT_EQ(x, static_cast<float>(nranks()));
    }
    const double wait = comm.Totals().wait_seconds - before.wait_seconds;
    const double transfer = comm.Totals().transfer_seconds - before.transfer_seconds;
    const PeerTotals pair = comm.TotalsOfPeer(0);
    const double pair_transfer = pair.transfer_seconds - pair_before.transfer_seconds;
    // A piece is 20 ms on the way. Where rank 1 has noticed that, it comes 20 ms late to the next
    // sum, for which rank 0 has sent its piece already: so every second sum shows the delay, three
    // of six. A third of it is asked for, since a loaded machine may also make rank 1 late.
    if (comm.rank() == 1) {
      EXPECT_EQ(pair.num_received - pair_before.num_received, 6);
      EXPECT_GE(pair.flight_seconds - pair_before.flight_seconds, 6 * 0.020);
      EXPECT_GE(pair_transfer, 0.020);
      EXPECT_GE(transfer + 1e-9, pair_transfer);
    } else {
      EXPECT_GE(wait, 0.020);
      // Other links take no time where memory is shared; over a network they take what they take.
      if (kind() != BackendKind::kUcx) {
        EXPECT_EQ(pair_transfer, 0.0);
      }
    }
  });
}

TEST_P(ConformanceTest, ACutLinkIsNamed) {
  if (nranks() < 2) GTEST_SKIP() << "one rank has no links";
  CommOptions options = SmallSlots();
  options.fault_rules = "0->1 drop after=1";
  const Ranks ranks = Create(options);
  RunRanks(ranks, [&](Communicator& comm) {
    float x = 1;
    EXPECT_OK(comm.AllReduce(&x, &x, 1, DataType::kF32, RedOp::kSum));
    absl::Status status;
    while (status.ok()) status = comm.AllReduce(&x, &x, 1, DataType::kF32, RedOp::kSum);
    ExpectFailed(comm, StatusCode::kUnavailable, "the link from rank 0 to rank 1 is cut");
  });
}

TEST_P(ConformanceTest, AFrozenLinkEndsAtTheDeadline) {
  if (nranks() < 2) GTEST_SKIP() << "one rank has no links";
  CommOptions options = SmallSlots();
  options.op_timeout = absl::Milliseconds(200);
  options.fault_rules = "0->1 op=broadcast freeze";
  const Ranks ranks = Create(options);
  RunRanks(ranks, [&](Communicator& comm) {
    float x = 1;
    absl::Status status = comm.Broadcast(&x, 1, DataType::kF32, 0);
    while (status.ok()) status = comm.Barrier(absl::InfiniteFuture());
    ExpectFailed(comm, StatusCode::kDeadlineExceeded, "broadcast #1");
    EXPECT_THAT(std::string(Message(comm.Health())), HasSubstr("waited for rank 0"));
  });
}

std::string CaseName(const testing::TestParamInfo<std::tuple<BackendKind, int>>& info) {
  return std::string(Name(std::get<0>(info.param))) + std::to_string(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Local, ConformanceTest,
                         testing::Combine(testing::Values(BackendKind::kLocal),
                                          testing::Values(1, 2, 3, 4, 8)),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(Shm, ConformanceTest,
                         testing::Combine(testing::Values(BackendKind::kShm),
                                          testing::Values(1, 2, 3, 4, 8)),
                         CaseName);
// The libraries of UCX patch madvise() with code that locks, which threads call at their end, when
// the thread sanitizer has already forgotten them: it crashes.
#if !defined(_GLIBCXX_TSAN)
INSTANTIATE_TEST_SUITE_P(Ucx, ConformanceTest,
                         testing::Combine(testing::Values(BackendKind::kUcx),
                                          testing::Values(1, 2, 3, 4, 8)),
                         CaseName);
#endif

}  // namespace
}  // namespace switchyard::comm

// A coordinator for tests that kill one: waits for a worker from outside, generates request 0 and
// prints the text's token ids, then lives on.
// usage: coordinator_process MODEL LISTEN_ADDRESS
#include <cstdio>
#include <string>
#include <unistd.h>

#include "end_to_end/group_harness.h"

int main(int argc, char** argv) {
  using switchyard::testing::GroupHarness;
  if (argc != 3) return 2;
  const auto model = switchyard::testing::OpenTestModel(argv[1]);
  GroupHarness harness(*model, {.listen_address = argv[2]});
  std::printf("address %s\n", harness.group().address().c_str());
  std::fflush(stdout);
  const auto generated = harness.Wait(harness.Start(switchyard::testing::TestRequest(*model, 0)));
  std::string ids = "ids";
  for (const int32_t id : generated.token_ids) ids += " " + std::to_string(id);
  std::printf("%s\n", ids.c_str());
  std::fflush(stdout);
  while (true) pause();
}

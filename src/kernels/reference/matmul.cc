#include "kernels/reference/matmul.h"

#include <algorithm>

#include "absl/types/span.h"

#include "kernels/reference/math.h"
#include "kernels/shard_segments.h"

namespace switchyard::kernels::reference {
namespace {

// Tokens that share one decoded row of the weight; their rows stay in the second-level cache.
constexpr int64_t kTokenTile = 32;
// Tokens whose sums are in registers at the same time.
constexpr int kTokenGroup = 4;

// Calls store(segment, token, row, product) for the products over each segment of the columns;
// segment i is [borders[i], borders[i + 1]).
template <typename Store>
void ForEachProduct(const ReferenceWeight& w, SlabPlace slab, absl::Span<const int64_t> borders,
                    MatrixView<const double> x, Workspace& workspace, Store store) {
  const Workspace::Frame frame(workspace);
  float* decoded = workspace.Take<float>(w.cols());
  double* row = workspace.Take<double>(w.cols());
  for (int64_t first = 0; first < x.rows; first += kTokenTile) {
    const int64_t last = std::min(first + kTokenTile, x.rows);
    for (int64_t r = 0; r < w.rows(); ++r) {
      const int64_t flat_row = slab.slab * w.rows() + r;
      const float* values =
          slab.in_fast_tier ? w.Row(flat_row, decoded) : w.StoredRow(flat_row, decoded);
      if (last - first >= kTokenGroup) Convert(values, w.cols(), row);
      for (size_t s = 0; s + 1 < borders.size(); ++s) {
        const int64_t begin = borders[s], size = borders[s + 1] - begin;
        int64_t t = first;
        for (; t + kTokenGroup <= last; t += kTokenGroup) {
          double products[kTokenGroup];
          const double* rows[kTokenGroup];
          for (int i = 0; i < kTokenGroup; ++i) rows[i] = x.row(t + i) + begin;
          DotRows<kTokenGroup>(row + begin, rows, size, products);
          for (int i = 0; i < kTokenGroup; ++i) store(s, t + i, r, products[i]);
        }
        for (; t < last; ++t) store(s, t, r, Dot(values + begin, x.row(t) + begin, size));
      }
    }
  }
}

}  // namespace

template <typename Out>
void MatMul(const Weight& w, SlabPlace slab, MatrixView<const double> x, MatrixView<Out> y,
            Workspace& workspace) {
  SWITCHYARD_DCHECK(x.cols == w.cols() && y.cols == w.rows() && y.rows == x.rows);
  const int64_t whole[] = {0, w.cols()};
  ForEachProduct(Own(w), slab, whole, x, workspace, [y](size_t, int64_t t, int64_t r, double sum) {
    y.row(t)[r] = static_cast<Out>(sum);
  });
}
template void MatMul<float>(const Weight&, SlabPlace, MatrixView<const double>, MatrixView<float>,
                            Workspace&);
template void MatMul<double>(const Weight&, SlabPlace, MatrixView<const double>, MatrixView<double>,
                             Workspace&);

void MatMulParts(const Weight& w, SlabPlace slab, const ShardBorders& borders,
                 MatrixView<const double> x, MatrixView<double> parts, Workspace& workspace) {
  SWITCHYARD_DCHECK(x.cols == w.cols() && parts.cols == w.rows() && parts.rows == 4 * x.rows);
  const ShardSegments segments = SegmentsOf(borders, w.cols());
  ForEachProduct(Own(w), slab, segments.borders(), x, workspace,
                 [parts, num_tokens = x.rows](size_t segment, int64_t t, int64_t r, double sum) {
                   // Segments come in order, so the first four set what the others add to.
                   const auto shard = static_cast<int64_t>(segment % 4);
                   double& part = parts.row(shard * num_tokens + t)[r];
                   part = segment < 4 ? sum : part + sum;
                 });
}

void MatMulSharded(const Weight& w, const ShardBorders& borders, MatrixView<const double> x,
                   MatrixView<float> y, Workspace& workspace) {
  const Workspace::Frame frame(workspace);
  const MatrixView<double> parts = workspace.TakeMatrix<double>(4 * x.rows, w.rows());
  MatMulParts(w, 0, borders, x, parts, workspace);
  for (int64_t t = 0; t < x.rows; ++t) {
    const double* part[4];
    for (int s = 0; s < 4; ++s) part[s] = parts.row(s * x.rows + t);
    for (int64_t r = 0; r < w.rows(); ++r) {
      y.row(t)[r] = static_cast<float>((part[0][r] + part[1][r]) + (part[2][r] + part[3][r]));
    }
  }
}

int64_t MatMulWorkspaceBytes(int64_t max_cols, int64_t max_rows, int64_t num_tokens) {
  return TakenBytes<float>(max_cols) + TakenBytes<double>(max_cols) +
         TakenBytes<double>(4 * max_rows * num_tokens);
}

MatrixView<const double> Widen(MatrixView<const float> x, Workspace& workspace) {
  const MatrixView<double> wide = workspace.TakeMatrix<double>(x.rows, x.cols);
  for (int64_t t = 0; t < x.rows; ++t) Convert(x.row(t), x.cols, wide.row(t));
  return wide;
}

}  // namespace switchyard::kernels::reference

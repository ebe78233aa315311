#include "mxrec/batch_rows.h"

#include <algorithm>
#include <array>
#include <string>

#include "first_error.h"
#include "row_math.h"

namespace mxrec {
namespace {

constexpr int64_t kRowsPerBlock = 256;
constexpr int64_t kCostPerRow = 8;  // cycles, plus one per column
constexpr int64_t kMaxParts = 8;    // each part of a sum reads all positions

Status OutOfRange(Span<const int32_t> positions, int64_t j, int64_t n) {
  return Status::InvalidArgument(
      "[" + std::to_string(j) + "] = " + std::to_string(positions[j]) +
      " is out of range [0, " + std::to_string(n) + ")");
}

}  // namespace

Status SpreadRows(const float* rows, int64_t n, int dim,
                  Span<const int32_t> positions, float* batch,
                  const Parallel& parallel) {
  const RowMath& math = BestRowMath();
  FirstError error;
  parallel.For(
      positions.size(), kCostPerRow + dim, [&](int64_t begin, int64_t end) {
        std::array<const float*, kRowsPerBlock> block;
        for (int64_t first = begin; first < end; first += kRowsPerBlock) {
          const int64_t size = std::min(kRowsPerBlock, end - first);
          for (int64_t i = 0; i < size; ++i) {
            const int64_t position = positions[first + i];
            if (position < 0 || position >= n) {
              error.Report(first + i);
              return;
            }
            block[i] = rows + position * dim;
          }
          math.gather(block.data(), size, dim, nullptr, batch + first * dim);
        }
      });
  if (!error.any()) return Status::Ok();
  return OutOfRange(positions, error.position(), n);
}

Status SumRows(const float* batch, Span<const int32_t> positions, int64_t n,
               int dim, float* sums, const Parallel& parallel) {
  for (int64_t j = 0; j < positions.size(); ++j) {
    if (positions[j] >= n) return OutOfRange(positions, j, n);
  }
  const RowMath& math = BestRowMath();
  // Early rows are those of frequent keys: by remainder they are shared out.
  int64_t parts = 1;
  while (parts < std::min<int64_t>(parallel.threads(), kMaxParts)) parts *= 2;
  parallel.For(parts, positions.size() * (kCostPerRow + dim) / parts,
               [&](int64_t begin, int64_t end) {
                 for (int64_t part = begin; part < end; ++part) {
                   math.sum_part(batch, positions.data(), positions.size(), n,
                                 dim, part, parts, sums);
                 }
               });
  return Status::Ok();
}

}  // namespace mxrec

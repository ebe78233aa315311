// Pooled lookups: one row for each row of a ragged batch of ids.
#ifndef MXREC_POOL_H_
#define MXREC_POOL_H_

#include <cstdint>

#include "mxrec/parallel.h"
#include "mxrec/span.h"
#include "mxrec/status.h"

namespace mxrec {

// How the embeddings e_j of a row, with weights w_j (1 if there are none),
// become one: sum is S = sum_j w_j e_j, mean is S / sum_j w_j, sqrtn is
// S / sqrt(sum_j w_j^2); zeros where that divisor is 0 or there are no ids.
enum class Combiner { kSum, kMean, kSqrtN };

// The ids of a batch: row i has those at [row_splits[i], row_splits[i + 1]).
struct PoolBatch {
  Span<const int32_t> restore;     // row of the embeddings, per id
  Span<const int64_t> row_splits;  // one more than there are rows
  const float* weights = nullptr;  // one per id; null: 1 each
  Combiner combiner = Combiner::kSum;

  int64_t rows() const { return row_splits.size() - 1; }
};

// All functions below check the whole batch before they write anything, and
// give InvalidArgument, naming position and value, for a `restore` outside of
// [0, num_embeddings) and for row splits that do not lead from 0 to the number
// of ids in steps that are not negative. Sums are taken in order of position,
// for any number of threads.

// pooled [rows, dim] from embeddings [num_embeddings, dim].
Status Pool(const PoolBatch& batch, const float* embeddings,
            int64_t num_embeddings, int64_t dim, float* pooled,
            const Parallel& parallel);

// From the gradients [rows, dim] of `pooled` those of the embeddings,
// [num_embeddings, dim]; zeros for an embedding that no id leads to.
Status PoolGradient(const PoolBatch& batch, const float* gradients,
                    int64_t num_embeddings, int64_t dim, float* out,
                    const Parallel& parallel);

// The gradients of the weights, one per id; 0 in rows whose divisor is 0.
// `batch.weights` must not be null.
Status PoolWeightGradient(const PoolBatch& batch, const float* gradients,
                          const float* embeddings, int64_t num_embeddings,
                          int64_t dim, float* out, const Parallel& parallel);

// Row splits [num_rows + 1] of a sparse matrix whose i-th value is in row
// indices[i * stride]. InvalidArgument, naming position and value, unless rows
// ascend and are in [0, num_rows).
Status RowSplits(const int64_t* indices, int64_t n, int64_t stride,
                 int64_t num_rows, int64_t* row_splits);

}  // namespace mxrec

#endif  // MXREC_POOL_H_

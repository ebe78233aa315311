// Between the rows of distinct keys and the rows of a batch in which keys
// repeat. `positions` are those that Unique gives, or any others.
#ifndef MXREC_BATCH_ROWS_H_
#define MXREC_BATCH_ROWS_H_

#include <cstdint>

#include "mxrec/parallel.h"
#include "mxrec/span.h"
#include "mxrec/status.h"

namespace mxrec {

// batch[j, :] = rows[positions[j], :] for `rows` [n, dim] and `batch`
// [positions.size(), dim]. InvalidArgument for a position not in [0, n);
// `batch` then has any content.
Status SpreadRows(const float* rows, int64_t n, int dim,
                  Span<const int32_t> positions, float* batch,
                  const Parallel& parallel);

// sums[r, :] = the sum of batch[j, :] over the j with positions[j] = r, added
// in order of j whatever the number of threads; zeros where there is none. A
// negative position is left out; InvalidArgument for one of at least n.
Status SumRows(const float* batch, Span<const int32_t> positions, int64_t n,
               int dim, float* sums, const Parallel& parallel);

}  // namespace mxrec

#endif  // MXREC_BATCH_ROWS_H_

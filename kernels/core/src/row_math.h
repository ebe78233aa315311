// Loops over rows, compiled for several instruction sets and chosen once per
// process. Rows are given as pointers; a null pointer is skipped by updates.
#ifndef MXREC_SRC_ROW_MATH_H_
#define MXREC_SRC_ROW_MATH_H_

#include <cstdint>

namespace mxrec {

struct RowMath {
  // out[i, :] = rows[i][0, dim), or default_row (zeros if null) for a null row.
  void (*gather)(const float* const* rows, int64_t n, int dim,
                 const float* default_row, float* out);

  // sums[r, :] = the sum of batch[i, :] over the i with positions[i] = r, in
  // order of i, for the rows r < n with r % parts = part; `parts` is a power of
  // two. Negative positions are left out.
  void (*sum_part)(const float* batch, const int32_t* positions, int64_t size,
                   int64_t n, int dim, int64_t part, int64_t parts,
                   float* sums);

  // w -= learning_rate * (g + weight_decay * w).
  void (*sgd)(float* const* rows, const float* gradients, int64_t n, int dim,
              float learning_rate, float weight_decay);

  // Row [w | m | v]; the formula of MxRecApplyLazyAdamByAddress with
  // `step_size` = lr_t.
  void (*lazy_adam)(float* const* rows, const float* gradients, int64_t n,
                    int dim, float step_size, float beta1, float beta2,
                    float epsilon);

  // Row [w | m | v]; the three steps of MxRecApplyAdamByAddress, of which the
  // first and the last are for all rows of a table, none of them null.
  void (*adam_decay)(float* const* rows, int64_t n, int dim, float beta1,
                     float beta2);
  void (*adam_add)(float* const* rows, const float* gradients, int64_t n,
                   int dim, float beta1, float beta2);
  void (*adam_move)(float* const* rows, int64_t n, int dim, float step_size,
                    float epsilon);

  // Row [w | s]; the formula of MxRecApplyAdagradByAddress.
  void (*adagrad)(float* const* rows, const float* gradients, int64_t n,
                  int dim, float learning_rate, float epsilon,
                  float root_epsilon);

  // Row [w | accum | linear]; the formula of MxRecApplyFtrlByAddress.
  void (*ftrl)(float* const* rows, const float* gradients, int64_t n, int dim,
               float learning_rate, float learning_rate_power, float l1,
               float l2, float l2_shrinkage);

  // out[i, :] = sum of factors[p] * matrix[index[p], :] over p in
  // [splits[i], splits[i + 1]), in order of p; factors of null are 1. With
  // `divisors`, that divided by divisors[i], or zeros where it is 0.
  void (*sum_rows)(const float* matrix, int64_t dim, const int32_t* index,
                   const float* factors, const int64_t* splits, int64_t n,
                   const float* divisors, float* out);

  // The transpose of sum_rows, for columns [column, column + columns) alone:
  // out[index[p], :] = sum of factors[p] / divisors[i] * vectors[i, :] over all
  // p in [splits[i], splits[i + 1]) of all i, in order of p; null: 1 each. Rows
  // whose divisor is 0 give nothing. `out` is [num_out, dim].
  void (*scatter_rows)(const float* vectors, int64_t dim, int64_t column,
                       int64_t columns, const int32_t* index,
                       const float* factors, const int64_t* splits, int64_t n,
                       const float* divisors, int64_t num_out, float* out);

  // out[p] = the dot product of matrix[index[p], :] and vectors[i, :] for p in
  // [splits[i], splits[i + 1]).
  void (*dot_rows)(const float* matrix, int64_t dim, const int32_t* index,
                   const int64_t* splits, int64_t n, const float* vectors,
                   float* out);
};

const RowMath& BestRowMath();

namespace internal {
extern const RowMath kRowMathBaseline;
extern const RowMath kRowMathAvx2;
extern const RowMath kRowMathAvx512;
}  // namespace internal

}  // namespace mxrec

#endif  // MXREC_SRC_ROW_MATH_H_

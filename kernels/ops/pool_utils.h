// What the ops of pooled lookups share.
#ifndef MXREC_OPS_POOL_UTILS_H_
#define MXREC_OPS_POOL_UTILS_H_

#include <string>

#include "mxrec/pool.h"
#include "op_utils.h"
#include "shape_fns.h"

namespace mxrec_ops {

// Whether an op of optional weights, `weights: W * float`, has any.
inline tensorflow::Status GetIsWeighted(
    tensorflow::OpKernelConstruction* context, bool* is_weighted) {
  int num_weights = 0;
  TF_RETURN_IF_ERROR(context->GetAttr("W", &num_weights));
  if (num_weights > 1) {
    return tensorflow::errors::InvalidArgument("W must be 0 or 1, got ",
                                               num_weights);
  }
  *is_weighted = num_weights == 1;
  return tensorflow::Status();
}

inline tensorflow::Status GetCombiner(tensorflow::OpKernelConstruction* context,
                                      mxrec::Combiner* combiner) {
  std::string name;
  TF_RETURN_IF_ERROR(context->GetAttr("combiner", &name));
  *combiner = name == "sum"    ? mxrec::Combiner::kSum
              : name == "mean" ? mxrec::Combiner::kMean
                               : mxrec::Combiner::kSqrtN;
  return tensorflow::Status();
}

// The batch of inputs `restore`, `row_splits` and `weights` (may be null);
// whether the values lead anywhere is left to the core.
inline tensorflow::Status GetPoolBatch(const tensorflow::Tensor& restore,
                                       const tensorflow::Tensor& row_splits,
                                       const tensorflow::Tensor* weights,
                                       mxrec::Combiner combiner,
                                       mxrec::PoolBatch* batch) {
  TF_RETURN_IF_ERROR(CheckVector(row_splits, "row_splits"));
  if (row_splits.NumElements() == 0) {
    return tensorflow::errors::InvalidArgument("row_splits must not be empty");
  }
  batch->restore = InputSpan<int32_t>(restore);
  batch->row_splits = InputSpan<int64_t>(row_splits);
  batch->combiner = combiner;
  if (weights == nullptr) return tensorflow::Status();
  if (weights->NumElements() != restore.NumElements()) {
    return tensorflow::errors::InvalidArgument(
        "there must be one weight per id: expected ", restore.NumElements(),
        ", got ", weights->NumElements());
  }
  batch->weights = weights->flat<float>().data();
  return tensorflow::Status();
}

inline tensorflow::Status CheckMatrix(const tensorflow::Tensor& tensor,
                                      const char* what) {
  if (tensor.dims() == 2) return tensorflow::Status();
  return tensorflow::errors::InvalidArgument(
      what, " must be a matrix, got shape ", tensor.shape().DebugString());
}

// `gradients` must have one row per row of the batch.
inline tensorflow::Status CheckPooledGradients(
    const tensorflow::Tensor& gradients, const mxrec::PoolBatch& batch) {
  TF_RETURN_IF_ERROR(CheckMatrix(gradients, "gradients"));
  if (gradients.dim_size(0) == batch.rows()) return tensorflow::Status();
  return tensorflow::errors::InvalidArgument(
      "gradients must have one row per row of the batch: expected ",
      batch.rows(), ", got ", gradients.dim_size(0));
}

// The number of rows of a batch with these row splits.
inline tensorflow::Status RowsOfSplits(InferenceContext* c, ShapeHandle splits,
                                       DimensionHandle* rows) {
  TF_RETURN_IF_ERROR(c->WithRank(splits, 1, &splits));
  const DimensionHandle size = c->Dim(splits, 0);
  if (!c->ValueKnown(size)) {
    *rows = c->UnknownDim();
    return tensorflow::Status();
  }
  return c->Subtract(size, 1, rows);
}

}  // namespace mxrec_ops

#endif  // MXREC_OPS_POOL_UTILS_H_

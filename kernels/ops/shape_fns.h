// Shape functions shared by several ops.
#ifndef MXREC_OPS_SHAPE_FNS_H_
#define MXREC_OPS_SHAPE_FNS_H_

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace mxrec_ops {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// handle, keys [n], then vectors  ->  addresses [n].
inline tensorflow::Status KeysToAddressesShape(InferenceContext* c) {
  ShapeHandle keys;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &keys));
  for (int i = 2; i < c->num_inputs(); ++i) {
    ShapeHandle vector;
    TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 1, &vector));
  }
  c->set_output(0, keys);
  return tensorflow::Status();
}

// Refuses a row mismatch when the graph is built, if both numbers are known by
// then.
inline tensorflow::Status CheckGradientRows(InferenceContext* c,
                                            ShapeHandle addresses,
                                            ShapeHandle gradients) {
  DimensionHandle rows;
  const tensorflow::Status merged =
      c->Merge(c->Dim(addresses, 0), c->Dim(gradients, 0), &rows);
  if (merged.ok()) return merged;
  return tensorflow::errors::InvalidArgument(
      "gradient rows must equal address rows: got ", c->DebugString(gradients),
      " gradients for ", c->DebugString(addresses), " addresses");
}

// n handles, n addresses [n_i], n gradients [n_i, dim_i], then scalars.
inline tensorflow::Status ApplyShape(InferenceContext* c, int n) {
  for (int i = 0; i < n; ++i) {
    ShapeHandle addresses, gradients;
    TF_RETURN_IF_ERROR(c->WithRank(c->input(n + i), 1, &addresses));
    TF_RETURN_IF_ERROR(c->WithRank(c->input(2 * n + i), 2, &gradients));
    TF_RETURN_IF_ERROR(CheckGradientRows(c, addresses, gradients));
  }
  for (int i = 3 * n; i < c->num_inputs(); ++i) {
    ShapeHandle scalar;
    TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &scalar));
  }
  return tensorflow::Status();
}

inline tensorflow::Status ApplyByAddressShape(InferenceContext* c) {
  return ApplyShape(c, 1);
}

inline tensorflow::Status ApplyManyShape(InferenceContext* c) {
  int n = 0;
  TF_RETURN_IF_ERROR(c->GetAttr("N", &n));
  return ApplyShape(c, n);
}

}  // namespace mxrec_ops

#endif  // MXREC_OPS_SHAPE_FNS_H_

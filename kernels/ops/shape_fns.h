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

// handle, addresses [n], gradients [n, dim], then scalars.
inline tensorflow::Status ApplyByAddressShape(InferenceContext* c) {
  ShapeHandle addresses, gradients;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &addresses));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 2, &gradients));
  TF_RETURN_IF_ERROR(CheckGradientRows(c, addresses, gradients));
  for (int i = 3; i < c->num_inputs(); ++i) {
    ShapeHandle scalar;
    TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &scalar));
  }
  return tensorflow::Status();
}

}  // namespace mxrec_ops

#endif  // MXREC_OPS_SHAPE_FNS_H_

// Updates by address: what the op of one table and the op of several share,
// and a kernel for each. What a rule is: see apply_rules.h.
#ifndef MXREC_OPS_APPLY_OPS_H_
#define MXREC_OPS_APPLY_OPS_H_

#include "apply_rules.h"
#include "many_utils.h"
#include "shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {

// These stand after REGISTER_OP like methods of it, before the hyperparameters.
#define MXREC_UPDATE_ONE()       \
  Input("handle: resource")      \
      .Input("addresses: int64") \
      .Input("gradients: float") \
      .SetIsStateful()           \
      .SetShapeFn(ApplyByAddressShape)

#define MXREC_UPDATE_MANY()          \
  Input("handles: N * resource")     \
      .Input("addresses: N * int64") \
      .Input("gradients: N * float") \
      .Attr("N: int >= 1")           \
      .SetIsStateful()               \
      .SetShapeFn(ApplyManyShape)

// `one` is the op of one table.
inline std::string UpdateManyDoc(const std::string& one) {
  return one + R"doc( for each table.

If one fails, the others may have been applied.

handles: distinct tables.
)doc";
}

// What an update of a table is given: addresses [n], gradients [n, dim].
struct ApplyInputs {
  TableRef table;
  mxrec::Span<const int64_t> addresses;
  const float* gradients = nullptr;
};

// Those of table `i` of n.
inline tensorflow::Status ReadApplyInputs(tensorflow::OpKernelContext* context,
                                          int i, int n, ApplyInputs* inputs) {
  TF_RETURN_IF_ERROR(GetFilledTable(context, i, &inputs->table));
  const tensorflow::Tensor& addresses = context->input(n + i);
  const tensorflow::Tensor& gradients = context->input(2 * n + i);
  TF_RETURN_IF_ERROR(CheckVector(addresses, "addresses"));
  const mxrec::TableOptions& options = inputs->table->table().options();
  if (gradients.dims() != 2 ||
      gradients.dim_size(0) != addresses.NumElements()) {
    return tensorflow::errors::InvalidArgument(
        "gradient rows must equal address rows: table '", options.name,
        "' got ", addresses.NumElements(), " addresses and gradients of shape ",
        gradients.shape().DebugString());
  }
  if (gradients.dim_size(1) != options.dim) {
    return tensorflow::errors::InvalidArgument(
        "gradient columns must equal the dim of table '", options.name,
        "': expected ", options.dim, ", got ", gradients.dim_size(1));
  }
  inputs->addresses = InputSpan<int64_t>(addresses);
  inputs->gradients = gradients.flat<float>().data();
  return tensorflow::Status();
}

// Reads the scalar inputs of a rule, the first of which is input `first`.
template <typename Rule>
tensorflow::Status ReadScalars(tensorflow::OpKernelContext* context, int first,
                               typename Rule::Params* params) {
  for (const auto& scalar : Rule::kScalars) {
    const tensorflow::Tensor& tensor = context->input(first++);
    TF_RETURN_IF_ERROR(CheckScalar(tensor, scalar.name));
    params->*scalar.value = tensor.scalar<float>()();
  }
  return tensorflow::Status();
}

template <typename Rule>
tensorflow::Status Update(const ApplyInputs& inputs,
                          const typename Rule::Params& params,
                          const mxrec::Parallel& parallel) {
  return ToTf((inputs.table->table().*Rule::kUpdate)(
      inputs.addresses, inputs.gradients, params, parallel));
}

// The update of one table.
template <typename Rule>
class ApplyOp : public tensorflow::OpKernel {
 public:
  explicit ApplyOp(tensorflow::OpKernelConstruction* context)
      : OpKernel(context) {
    OP_REQUIRES_OK(context, Rule::ReadAttrs(context, &attrs_));
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    ApplyInputs inputs;
    OP_REQUIRES_OK(context, ReadApplyInputs(context, 0, 1, &inputs));
    typename Rule::Params params = attrs_;
    OP_REQUIRES_OK(context, ReadScalars<Rule>(context, 3, &params));
    OP_REQUIRES_OK(context, Update<Rule>(inputs, params, TfParallel(context)));
  }

 private:
  typename Rule::Params attrs_;
};

// The updates of several tables.
template <typename Rule>
class ApplyManyOp : public tensorflow::OpKernel {
 public:
  explicit ApplyManyOp(tensorflow::OpKernelConstruction* context)
      : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("N", &n_));
    OP_REQUIRES_OK(context, Rule::ReadAttrs(context, &attrs_));
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    typename Rule::Params params = attrs_;
    OP_REQUIRES_OK(context, ReadScalars<Rule>(context, 3 * n_, &params));
    std::vector<ApplyInputs> inputs(n_);
    std::vector<int64_t> sizes(n_);
    for (int i = 0; i < n_; ++i) {
      OP_REQUIRES_OK(context, ReadApplyInputs(context, i, n_, &inputs[i]));
      sizes[i] = inputs[i].addresses.size();
    }
    OP_REQUIRES_OK(context,
                   ForEachTable(context, sizes,
                                [&](int i, const mxrec::Parallel& parallel) {
                                  return Update<Rule>(inputs[i], params,
                                                      parallel);
                                }));
  }

 private:
  int n_ = 0;
  typename Rule::Params attrs_;
};

}  // namespace mxrec_ops

#endif  // MXREC_OPS_APPLY_OPS_H_

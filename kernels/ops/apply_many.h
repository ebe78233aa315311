// The updates of several tables in one op. An optimizer brings its attributes,
// its scalar inputs and its call of the table; see apply_sgd_many_op.cc.
#ifndef MXREC_OPS_APPLY_MANY_H_
#define MXREC_OPS_APPLY_MANY_H_

#include "apply_utils.h"
#include "many_utils.h"
#include "shape_fns.h"

namespace mxrec_ops {

// N handles, N addresses [n_i], N gradients [n_i, dim_i], then scalars.
inline tensorflow::Status ApplyManyShape(InferenceContext* c) {
  int n = 0;
  TF_RETURN_IF_ERROR(c->GetAttr("N", &n));
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

// `Update` has
//   using Params = ...;
//   Status ReadAttrs(OpKernelConstruction*);
//   Status ReadScalars(OpKernelContext*, int first, Params*) const;
//   static mxrec::Status Apply(mxrec::Table*, const ApplyInputs&,
//                              const Params&, const mxrec::Parallel&);
template <typename Update>
class ApplyManyOp : public tensorflow::OpKernel {
 public:
  explicit ApplyManyOp(tensorflow::OpKernelConstruction* context)
      : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("N", &n_));
    OP_REQUIRES_OK(context, update_.ReadAttrs(context));
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    typename Update::Params params;
    OP_REQUIRES_OK(context, update_.ReadScalars(context, 3 * n_, &params));
    std::vector<ApplyInputs> inputs(n_);
    std::vector<int64_t> sizes(n_);
    for (int i = 0; i < n_; ++i) {
      OP_REQUIRES_OK(context, ReadApplyInputs(context, &inputs[i], i, n_));
      sizes[i] = inputs[i].addresses.size();
    }
    OP_REQUIRES_OK(
        context,
        ForEachTable(context, sizes,
                     [&](int i, const mxrec::Parallel& parallel) {
                       return ToTf(Update::Apply(&inputs[i].table->table(),
                                                 inputs[i], params, parallel));
                     }));
  }

 private:
  int n_ = 0;
  Update update_;
};

}  // namespace mxrec_ops

#endif  // MXREC_OPS_APPLY_MANY_H_

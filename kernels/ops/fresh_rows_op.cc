// MxRecFreshRows: the initial value of the variable of a fixed-capacity table.
#include "op_utils.h"
#include "shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

REGISTER_OP("MxRecFreshRows")
    .Input("handle: resource")
    .Output("rows: float")
    .Attr("capacity: int >= 1")
    .Attr("dim: int >= 1")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      int64_t capacity = 0;
      int64_t dim = 0;
      TF_RETURN_IF_ERROR(c->GetAttr("capacity", &capacity));
      TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
      c->set_output(0, c->Matrix(capacity, dim));
      return tensorflow::Status();
    })
    .Doc(R"doc(
Zeros [capacity, dim]; MxRecOffsets will write each key's initial values when it
meets the key's row.
)doc");

class FreshRowsOp : public OpKernel {
 public:
  explicit FreshRowsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("capacity", &capacity_));
    OP_REQUIRES_OK(context, context->GetAttr("dim", &dim_));
  }

  void Compute(OpKernelContext* context) override {
    TableRef table;
    OP_REQUIRES_OK(context, GetTable(context, 0, &table));
    tensorflow::Tensor* rows = nullptr;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, {capacity_, dim_}, &rows));
    rows->flat<float>().setZero();
    table->table().ForgetInitializedRows();
  }

 private:
  int64_t capacity_ = 0;
  int64_t dim_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("MxRecFreshRows").Device(tensorflow::DEVICE_CPU),
                        FreshRowsOp);

}  // namespace
}  // namespace mxrec_ops

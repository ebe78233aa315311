// A kernel of TensorFlow's own GatherV2, for nodes that ask for it by the
// attribute _kernel: the gather that spreads the rows of a lookup over its
// batch. It gives what TensorFlow's kernel gives. A key that is frequent in the
// batch is read again and again from cache; the rows of the others are fetched
// ahead.
#include "mxrec/batch_rows.h"
#include "op_utils.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

class HotGatherOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& rows = context->input(0);
    const Tensor& positions = context->input(1);
    const Tensor& axis = context->input(2);
    OP_REQUIRES(context,
                rows.dims() == 2 && axis.NumElements() == 1 &&
                    axis.flat<int32_t>()(0) == 0,
                tensorflow::errors::InvalidArgument(
                    "node ", name(),
                    ": this kernel gathers along axis 0 of a matrix, "
                    "got shape ",
                    rows.shape().DebugString(), " and axis ",
                    axis.SummarizeValue(1), "; remove its attribute _kernel"));
    tensorflow::TensorShape shape = positions.shape();
    shape.AddDim(rows.dim_size(1));
    Tensor* batch = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &batch));
    const mxrec::Status status = mxrec::SpreadRows(
        rows.flat<float>().data(), rows.dim_size(0),
        static_cast<int>(rows.dim_size(1)), InputSpan<int32_t>(positions),
        batch->flat<float>().data(), TfParallel(context));
    OP_REQUIRES(context, status.ok(),
                tensorflow::errors::InvalidArgument(
                    "node ", name(), ": indices", status.message()));
  }
};

REGISTER_KERNEL_BUILDER(Name("GatherV2")
                            .Device(tensorflow::DEVICE_CPU)
                            .TypeConstraint<float>("Tparams")
                            .TypeConstraint<int32_t>("Tindices")
                            .TypeConstraint<int32_t>("Taxis")
                            .Label("mx_rec_hot"),
                        HotGatherOp);

}  // namespace
}  // namespace mxrec_ops

// MxRecCheckIds: ids that are rows of a variable.
#include "op_utils.h"
#include "shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

REGISTER_OP("MxRecCheckIds")
    .Input("ids: Tids")
    .Output("checked: Tids")
    .Attr("rows: int >= 1")
    .Attr("variable: string")
    .Attr("Tids: {int32, int64} = DT_INT64")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->input(0));
      return tensorflow::Status();
    })
    .Doc(R"doc(
Hands on ids if all are in [0, rows), else InvalidArgument, as a gather of rows of a
variable has it.

ids: of any shape.
rows: of the variable.
variable: its name, for the error.
)doc");

template <typename T>
class CheckIdsOp : public OpKernel {
 public:
  explicit CheckIdsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("rows", &rows_));
    OP_REQUIRES_OK(context, context->GetAttr("variable", &variable_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& ids = context->input(0);
    const auto values = ids.flat<T>();
    for (int64_t i = 0; i < values.size(); ++i) {
      const int64_t id = static_cast<int64_t>(values(i));
      OP_REQUIRES(context, id >= 0 && id < rows_,
                  tensorflow::errors::InvalidArgument(
                      "id ", id, " at position ", i, " is not in [0, ", rows_,
                      "), the rows of variable '", variable_,
                      "', whose place a table has; convert it with initial "
                      "values by key to let it grow"));
    }
    context->set_output(0, ids);
  }

 private:
  int64_t rows_ = 0;
  std::string variable_;
};

REGISTER_KERNEL_BUILDER(Name("MxRecCheckIds")
                            .Device(tensorflow::DEVICE_CPU)
                            .TypeConstraint<int32_t>("Tids"),
                        CheckIdsOp<int32_t>);
REGISTER_KERNEL_BUILDER(Name("MxRecCheckIds")
                            .Device(tensorflow::DEVICE_CPU)
                            .TypeConstraint<int64_t>("Tids"),
                        CheckIdsOp<int64_t>);

}  // namespace
}  // namespace mxrec_ops

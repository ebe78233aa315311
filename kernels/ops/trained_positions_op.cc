// MxRecTrainedPositions: which rows of a fixed-capacity table an update
// changes.
#include <algorithm>
#include <vector>

#include "op_utils.h"
#include "shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;

REGISTER_OP("MxRecTrainedPositions")
    .Input("handle: resource")
    .Input("offsets: int64")
    .Output("positions: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle offsets;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &offsets));
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      return tensorflow::Status();
    })
    .Doc(R"doc(
Positions of the offsets whose rows an update may change.

offsets: [n], from MxRecOffsets.
positions: [m], ascending; without those of offset -1 and of padding keys.
)doc");

class TrainedPositionsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TableRef table;
    OP_REQUIRES_OK(context, GetTable(context, 0, &table));
    const tensorflow::Tensor& offsets = context->input(1);
    OP_REQUIRES_OK(context, CheckVector(offsets, "offsets"));
    std::vector<int64_t> found;
    OP_REQUIRES_OK(context, ToTf(table->table().TrainedPositions(
                                InputSpan<int64_t>(offsets), &found)));
    tensorflow::Tensor* positions = nullptr;
    OP_REQUIRES_OK(context,
                   context->allocate_output(
                       0, {static_cast<int64_t>(found.size())}, &positions));
    std::copy(found.begin(), found.end(),
              OutputSpan<int64_t>(positions).begin());
  }
};

REGISTER_KERNEL_BUILDER(
    Name("MxRecTrainedPositions").Device(tensorflow::DEVICE_CPU),
    TrainedPositionsOp);

}  // namespace
}  // namespace mxrec_ops

// MxRecReadySlots: the slot variables of a table of fixed capacity, before they
// are used.
#include "op_utils.h"
#include "shape_fns.h"
#include "table_variables.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

REGISTER_OP("MxRecReadySlots")
    .Input("handle: resource")
    .Input("slots: V * resource")
    .Input("steps: S * resource")
    .Attr("V: int >= 0")
    .Attr("S: int >= 0")
    .Attr("slot_initials: list(float) = []")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Gives the slot variables of a table of fixed capacity their initial values where
they have none yet.

slots: float [capacity, dim] each.
steps: a step count, an int64 scalar, or none.
slot_initials: the value that each slot begins with.
)doc");

class ReadySlotsOp : public OpKernel {
 public:
  explicit ReadySlotsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("V", &num_slots_));
    OP_REQUIRES_OK(context, context->GetAttr("S", &num_steps_));
    OP_REQUIRES_OK(context, context->GetAttr("slot_initials", &initials_));
    OP_REQUIRES(context, static_cast<int>(initials_.size()) == num_slots_,
                tensorflow::errors::InvalidArgument(
                    num_slots_, " slots do not go with ", initials_.size(),
                    " initial values"));
  }

  void Compute(OpKernelContext* context) override {
    TableRef table;
    OP_REQUIRES_OK(context, GetTable(context, 0, &table));
    for (int i = 0; i < num_slots_; ++i) {
      VarRef slot;
      OP_REQUIRES_OK(context,
                     GetRowsVariable(context, 1 + i, table->table().options(),
                                     initials_[i], &slot));
    }
    for (int i = 0; i < num_steps_; ++i) {
      VarRef steps;
      OP_REQUIRES_OK(context,
                     GetStepVariable(context, 1 + num_slots_ + i, &steps));
    }
  }

 private:
  int num_slots_ = 0;
  int num_steps_ = 0;
  std::vector<float> initials_;
};

REGISTER_KERNEL_BUILDER(Name("MxRecReadySlots").Device(tensorflow::DEVICE_CPU),
                        ReadySlotsOp);

}  // namespace
}  // namespace mxrec_ops

// MxRecResetSlots: slots of a fixed-capacity table whose row was another key's.
#include <algorithm>
#include <vector>

#include "op_utils.h"
#include "shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/resource_var.h"
#include "variable_utils.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

REGISTER_OP("MxRecResetSlots")
    .Input("handle: resource")
    .Input("slots: N * resource")
    .Input("offsets: int64")
    .Attr("N: int >= 1")
    .Attr("initial_values: list(float)")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle offsets;
      return c->WithRank(c->input(c->num_inputs() - 1), 1, &offsets);
    })
    .Doc(R"doc(
Writes initial values into the slots of rows that have come from an evicted key and
that no call has named since.

slots: float variables [fixed_capacity, dim].
offsets: [n], rows of the table; -1 is skipped.
initial_values: one per slot, of all its columns.
)doc");

class ResetSlotsOp : public OpKernel {
 public:
  explicit ResetSlotsOp(OpKernelConstruction* context) : OpKernel(context) {
    int n = 0;
    OP_REQUIRES_OK(context, context->GetAttr("N", &n));
    OP_REQUIRES_OK(context, context->GetAttr("initial_values", &initial_));
    OP_REQUIRES(context, static_cast<int>(initial_.size()) == n,
                tensorflow::errors::InvalidArgument(
                    "initial_values must have one element per slot: expected ",
                    n, ", got ", initial_.size()));
  }

  void Compute(OpKernelContext* context) override {
    TableRef table;
    OP_REQUIRES_OK(context, GetTable(context, 0, &table));
    const int n = static_cast<int>(initial_.size());
    const tensorflow::Tensor& offsets = context->input(n + 1);
    OP_REQUIRES_OK(context, CheckVector(offsets, "offsets"));
    // Before any variable is locked: mostly there are none.
    bool any_stale = false;
    OP_REQUIRES_OK(context, ToTf(table->table().HasStaleSlots(
                                InputSpan<int64_t>(offsets), &any_stale)));
    if (!any_stale) return;
    // A save must find a row either stale or written.
    std::vector<VarRef> slots(n);
    std::vector<tensorflow::Var*> variables;
    for (int i = 0; i < n; ++i) {
      OP_REQUIRES_OK(context,
                     GetRowsVariable(context, i + 1, table->table().options(),
                                     initial_[i], &slots[i]));
      variables.push_back(slots[i].get());
    }
    const VariableLocks locks = LockAll(std::move(variables));
    for (const VarRef& slot : slots) {
      OP_REQUIRES_OK(context, MakeUnshared(context, slot.get()));
    }
    const int dim = table->table().options().dim;
    OP_REQUIRES_OK(context,
                   ToTf(table->table().ResetSlots(
                       InputSpan<int64_t>(offsets), [&](int64_t offset) {
                         for (int i = 0; i < n; ++i) {
                           float* const data =
                               slots[i]->tensor()->flat<float>().data();
                           std::fill_n(data + offset * dim, dim, initial_[i]);
                         }
                       })));
  }

 private:
  std::vector<float> initial_;
};

REGISTER_KERNEL_BUILDER(Name("MxRecResetSlots").Device(tensorflow::DEVICE_CPU),
                        ResetSlotsOp);

}  // namespace
}  // namespace mxrec_ops

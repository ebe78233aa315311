// MxRecTableSave: writes a table's files beside a checkpoint.
#include "mxrec/saving.h"
#include "op_utils.h"
#include "save_requests.h"
#include "shape_fns.h"
#include "table_variables.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

REGISTER_OP("MxRecTableSave")
    .Input("handle: resource")
    .Input("prefix: string")
    .Input("variables: V * resource")
    .Input("steps: S * resource")
    .Output("manifest: string")
    .Attr("V: int >= 0")
    .Attr("S: int >= 0")
    .Attr("file_number: int >= 0")
    .Attr("key_dtype: {'int64', 'int32'} = 'int64'")
    .Attr("optimizer: string = ''")
    .Attr("slot_initials: list(float) = []")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Saves the state of one instant of a table to files beside a checkpoint.

The files are complete, on disk and under their names when the op ends.

prefix: of the checkpoint.
variables: of a table of fixed capacity its rows and then the slots of its
  optimizer, float [capacity, dim] each; else none.
steps: the step count of that optimizer, an int64 scalar, or none.
manifest: what MxRecTableRestore needs, to be kept in the checkpoint.
file_number: different for the tables of a checkpoint.
optimizer: whose slots they are.
slot_initials: the value that each slot begins with.
)doc");

class TableSaveOp : public OpKernel {
 public:
  explicit TableSaveOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("V", &num_variables_));
    OP_REQUIRES_OK(context, context->GetAttr("S", &num_steps_));
    OP_REQUIRES_OK(context,
                   context->GetAttr("file_number", &request_.file_number));
    OP_REQUIRES_OK(context, context->GetAttr("key_dtype", &request_.key_dtype));
    OP_REQUIRES_OK(context,
                   context->GetAttr("optimizer", &request_.slots.optimizer));
    OP_REQUIRES_OK(context, context->GetAttr("slot_initials",
                                             &request_.slots.initial_values));
  }

  void Compute(OpKernelContext* context) override {
    TableRef table;
    OP_REQUIRES_OK(context, GetFilledTable(context, 0, &table));
    OP_REQUIRES_OK(context, CheckScalar(context->input(1), "prefix"));
    TableVariables variables;
    OP_REQUIRES_OK(context, variables.Get(context, 2, num_variables_,
                                          num_steps_, table->table().options(),
                                          request_.slots.initial_values));
    mxrec::SaveRequest request = request_;
    request.prefix = context->input(1).scalar<tensorflow::tstring>()();
    const SaveRequests::Wish wish = SaveRequests::Global().Of(request.prefix);
    request.kind = wish.kind;
    request.least_count = wish.least_count;
    request.hold_rows = [&variables](int64_t* steps) {
      variables.Hold();
      *steps = variables.steps();
    };
    request.release_rows = [&variables] { variables.Release(); };
    request.read_rows = [&variables](mxrec::Span<const mxrec::RowIndex> offsets,
                                     float* out) {
      variables.Read(offsets, out);
    };
    mxrec::SavedTable saved;
    OP_REQUIRES_OK(context, ToTf(table->table().Save(request, &saved)));
    SaveRequests::Global().SetLastPrefix(request.prefix);
    tensorflow::Tensor* manifest = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &manifest));
    manifest->scalar<tensorflow::tstring>()() = saved.Encode();
  }

 private:
  mxrec::SaveRequest request_;  // what the attributes say
  int num_variables_ = 0;
  int num_steps_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("MxRecTableSave").Device(tensorflow::DEVICE_CPU),
                        TableSaveOp);

}  // namespace
}  // namespace mxrec_ops

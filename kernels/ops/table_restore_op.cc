// MxRecTableRestore: the content of a table from the files of a checkpoint.
#include "mxrec/saving.h"
#include "op_utils.h"
#include "shape_fns.h"
#include "table_variables.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

REGISTER_OP("MxRecTableRestore")
    .Input("handle: resource")
    .Input("prefix: string")
    .Input("manifest: string")
    .Input("variables: V * resource")
    .Input("steps: S * resource")
    .Attr("V: int >= 0")
    .Attr("S: int >= 0")
    .Attr("key_dtype: {'int64', 'int32'} = 'int64'")
    .Attr("optimizer: string = ''")
    .Attr("slot_initials: list(float) = []")
    .Attr("with_slots: bool = true")
    .Attr("part: int >= 0 = 0")
    .Attr("parts: int >= 1 = 1")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Replaces the content of a table by what MxRecTableSave saved, of any table with
equal dim and key_dtype.

All is checked first; after an error the table is as it was.

prefix: of the checkpoint.
manifest: that the checkpoint holds.
variables, steps, optimizer, slot_initials: see MxRecTableSave.
with_slots: else the rows alone are restored, and their slots begin anew.
part, parts: of several parts, of which each has the keys of one hash value, the
  one to restore.
)doc");

class TableRestoreOp : public OpKernel {
 public:
  explicit TableRestoreOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("V", &num_variables_));
    OP_REQUIRES_OK(context, context->GetAttr("S", &num_steps_));
    OP_REQUIRES_OK(context, context->GetAttr("key_dtype", &request_.key_dtype));
    OP_REQUIRES_OK(context,
                   context->GetAttr("optimizer", &request_.slots.optimizer));
    OP_REQUIRES_OK(context, context->GetAttr("slot_initials",
                                             &request_.slots.initial_values));
    OP_REQUIRES_OK(context,
                   context->GetAttr("with_slots", &request_.with_slots));
    OP_REQUIRES_OK(context, context->GetAttr("part", &request_.part));
    OP_REQUIRES_OK(context, context->GetAttr("parts", &request_.parts));
  }

  void Compute(OpKernelContext* context) override {
    TableRef table;
    OP_REQUIRES_OK(context, GetTable(context, 0, &table));
    OP_REQUIRES_OK(context, CheckScalar(context->input(1), "prefix"));
    OP_REQUIRES_OK(context, CheckScalar(context->input(2), "manifest"));
    const std::vector<float>& initials = request_.slots.initial_values;
    TableVariables variables;
    OP_REQUIRES_OK(context,
                   variables.Get(context, 3, num_variables_, num_steps_,
                                 table->table().options(), initials));
    variables.Hold();
    OP_REQUIRES_OK(context, variables.MakeWritable(context));
    mxrec::RestoreRequest request = request_;
    request.prefix = context->input(1).scalar<tensorflow::tstring>()();
    const std::string manifest =
        context->input(2).scalar<tensorflow::tstring>()();
    OP_REQUIRES_OK(context,
                   ToTf(mxrec::SavedTable::Decode(
                       manifest, "'" + request.prefix + "'", &request.saved)));
    request.write_rows =
        [&variables](mxrec::Span<const mxrec::RowIndex> offsets,
                     const float* rows) { variables.Write(offsets, rows); };
    mxrec::RestoreReport report;
    OP_REQUIRES_OK(context, ToTf(table->table().Restore(request, &report)));
    if (!report.differences.empty()) {
      LOG(WARNING) << "table '" << table->table().options().name
                   << "' was restored from '" << request.prefix
                   << "' with other settings: " << report.differences
                   << "; those of this program hold";
    }
    // A new key's slots must not be those of a key of before.
    variables.ResetSlots(report.keys, initials);
    variables.SetSteps(report.steps);
  }

 private:
  mxrec::RestoreRequest request_;  // what the attributes say
  int num_variables_ = 0;
  int num_steps_ = 0;
};

REGISTER_KERNEL_BUILDER(
    Name("MxRecTableRestore").Device(tensorflow::DEVICE_CPU), TableRestoreOp);

}  // namespace
}  // namespace mxrec_ops

// MxRecTableRestore: the content of a table from the files of a checkpoint.
#include "mxrec/saving.h"
#include "op_utils.h"
#include "shape_fns.h"
#include "table_variables.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/platform/env.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Status;

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

All is checked first; after an error the table is as it was. With a table of fixed
capacity it waits until the steps that use the table have ended, at most 30
seconds, and no other may begin meanwhile.

prefix: of the checkpoint.
manifest: that the checkpoint holds.
variables, steps, optimizer, slot_initials: see MxRecTableSave. For a table that
  grows, optimizer and slot_initials are of the optimizer that trains it, if that
  is known: saved slots of another are refused.
with_slots: else the rows alone are restored, and their slots begin anew.
part, parts: of several parts, of which each has the keys of one hash value, the
  one to restore.
)doc");

class TableRestoreOp : public tensorflow::AsyncOpKernel {
 public:
  explicit TableRestoreOp(OpKernelConstruction* context)
      : AsyncOpKernel(context) {
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

  // In a thread of its own: it may wait for steps, which need those of this
  // one.
  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    tensorflow::Env::Default()->SchedClosure(
        [this, context, done = std::move(done)] {
          context->SetStatus(Restore(context));
          done();
        });
  }

 private:
  Status Restore(OpKernelContext* context) const {
    TableRef table;
    TF_RETURN_IF_ERROR(GetTable(context, 0, &table));
    TF_RETURN_IF_ERROR(CheckScalar(context->input(1), "prefix"));
    TF_RETURN_IF_ERROR(CheckScalar(context->input(2), "manifest"));
    const std::vector<float>& initials = request_.slots.initial_values;
    TableVariables variables;
    TF_RETURN_IF_ERROR(variables.Get(context, 3, num_variables_, num_steps_,
                                     table->table().options(), initials));
    mxrec::RestoreRequest request = request_;
    request.prefix = context->input(1).scalar<tensorflow::tstring>()();
    const std::string manifest =
        context->input(2).scalar<tensorflow::tstring>()();
    TF_RETURN_IF_ERROR(ToTf(mxrec::SavedTable::Decode(
        manifest, "'" + request.prefix + "'", &request.saved)));
    request.hold_rows = [&variables, context] {
      variables.Hold();
      const Status status = variables.MakeWritable(context);
      if (status.ok()) return mxrec::Status::Ok();
      return mxrec::Status::ResourceExhausted(
          std::string(status.message().data(), status.message().size()));
    };
    request.write_rows =
        [&variables](mxrec::Span<const mxrec::RowIndex> offsets,
                     const float* rows) { variables.Write(offsets, rows); };
    mxrec::RestoreReport report;
    TF_RETURN_IF_ERROR(ToTf(table->table().Restore(request, &report)));
    table->Replaced();
    if (!report.differences.empty()) {
      LOG(WARNING) << "table '" << table->table().options().name
                   << "' was restored from '" << request.prefix
                   << "' with other settings: " << report.differences
                   << "; those of this program hold";
    }
    // A new key's slots must not be those of a key of before.
    variables.ResetSlots(report.keys, initials);
    variables.SetSteps(report.steps);
    return Status();
  }

  mxrec::RestoreRequest request_;  // what the attributes say
  int num_variables_ = 0;
  int num_steps_ = 0;
};

REGISTER_KERNEL_BUILDER(
    Name("MxRecTableRestore").Device(tensorflow::DEVICE_CPU), TableRestoreOp);

}  // namespace
}  // namespace mxrec_ops

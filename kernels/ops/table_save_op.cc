// MxRecTableSave: writes a table's files beside a checkpoint.
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "mxrec/saving.h"
#include "op_utils.h"
#include "row_writes.h"
#include "save_requests.h"
#include "shape_fns.h"
#include "table_variables.h"
#include "tensorflow/core/framework/op.h"
#include "variable_writers.h"

namespace mxrec_ops {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Status;

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

class TableSaveOp : public AsyncOpKernel {
 public:
  explicit TableSaveOp(OpKernelConstruction* context) : AsyncOpKernel(context) {
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

  // In a thread of its own: it may wait for steps and for the disk, and those
  // of the pool are the steps'.
  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    tensorflow::Env::Default()->SchedClosure(
        [this, context, done = std::move(done)] {
          context->SetStatus(Save(context));
          done();
        });
  }

 private:
  Status Save(OpKernelContext* context) const {
    TableRef table;
    TF_RETURN_IF_ERROR(GetFilledTable(context, 0, &table));
    TF_RETURN_IF_ERROR(CheckScalar(context->input(1), "prefix"));
    TableVariables variables;
    TF_RETURN_IF_ERROR(variables.Get(context, 2, num_variables_, num_steps_,
                                     table->table().options(),
                                     request_.slots.initial_values));
    mxrec::SaveRequest request = request_;
    request.prefix = context->input(1).scalar<tensorflow::tstring>()();
    const SaveRequests::Wish wish = SaveRequests::Global().Of(request.prefix);
    request.kind = wish.kind;
    request.least_count = wish.least_count;
    const VariableWriters::Known writers = WritersOfRows(context);
    // A delta knows the rows that have been looked up.
    if (num_variables_ > 0 && request.kind == mxrec::SaveKind::kDelta &&
        writers != VariableWriters::Known::kLookedUpRows) {
      request.kind = mxrec::SaveKind::kBase;
    }
    // This step would wait for itself.
    if (StepWritesRows(context, table)) {
      request.wait_for_writes = std::chrono::milliseconds(0);
    } else if (writers == VariableWriters::Known::kLookedUpRows) {
      request.share_rows = [&variables, context](int64_t* steps) {
        if (!variables.Share(context).ok()) return false;
        *steps = variables.ReadSteps();
        return true;
      };
    }
    request.identity = [&variables] { return variables.Identity(); };
    request.hold_rows = [&variables](int64_t* steps) {
      variables.Release();
      variables.Hold();
      *steps = variables.steps();
    };
    request.release_rows = [&variables] { variables.Release(); };
    request.read_rows = [&variables](mxrec::Span<const mxrec::RowIndex> offsets,
                                     float* out) {
      variables.Read(offsets, out);
    };
    mxrec::SavedTable saved;
    TF_RETURN_IF_ERROR(ToTf(table->table().Save(request, &saved)));
    SaveRequests::Global().SetLastPrefix(request.prefix);
    tensorflow::Tensor* manifest = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {}, &manifest));
    manifest->scalar<tensorflow::tstring>()() = saved.Encode();
    return Status();
  }

  VariableWriters::Known WritersOfRows(OpKernelContext* context) const {
    std::vector<std::string> names;
    for (int i = 0; i < num_variables_; ++i) {
      names.push_back(tensorflow::HandleFromInput(context, 2 + i).name());
    }
    return VariableWriters::Global().Of(
        context->device()->attributes().incarnation(), names);
  }

  mxrec::SaveRequest request_;  // what the attributes say
  int num_variables_ = 0;
  int num_steps_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("MxRecTableSave").Device(tensorflow::DEVICE_CPU),
                        TableSaveOp);

}  // namespace
}  // namespace mxrec_ops

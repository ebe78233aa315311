// MxRecFindOrInsert: the addresses of a training batch's keys.
#include <memory>
#include <utility>

#include "op_utils.h"
#include "row_writes.h"
#include "shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Status;

REGISTER_OP("MxRecFindOrInsert")
    .Input("handle: resource")
    .Input("keys: int64")
    .Input("hints: int64")
    .Input("counts: int32")
    .Input("timestamps: M * int64")
    .Output("addresses: int64")
    .Attr("max_keys: int >= 0 = 0")
    .Attr("coefficient: int >= 1 = 1")
    .Attr("M: int >= 0 = 0")
    .SetIsStateful()
    .SetShapeFn(KeysToAddressesShape)
    .Doc(R"doc(
Addresses of keys; a missing key is inserted with its initial row, in a table with
admission once its count has reached the threshold.

keys: [n].
hints: [n] or [0], addresses found ahead of time by MxRecLookAhead. A hint that
  is not the current address of its key is ignored.
counts: [n] or [0] (1 each), occurrences to add to each key's count.
timestamps: none or one of [n], [1] (one for all) or [0] (as none), seconds: when
  each key was last seen. With none it is the newest time that the table has seen.
max_keys: the largest number of keys a batch may have, 0 for any; more are an
  error that names the table, and nothing is looked up.
coefficient: what an occurrence counts.
addresses: [n], 0 for a key that is not admitted.
)doc");

// Asynchronous: with a table of fixed capacity it may wait for the beginning of
// a save, as MxRecOffsets.
class FindOrInsertOp : public AsyncOpKernel {
 public:
  explicit FindOrInsertOp(OpKernelConstruction* context)
      : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("max_keys", &max_keys_));
    OP_REQUIRES_OK(context, context->GetAttr("coefficient", &coefficient_));
    OP_REQUIRES_OK(context, context->GetAttr("M", &num_timestamps_));
    OP_REQUIRES(context, num_timestamps_ <= 1,
                tensorflow::errors::InvalidArgument(
                    "M, the number of vectors of timestamps, must be 0 or 1, "
                    "got ",
                    num_timestamps_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    auto table = std::make_shared<TableRef>();
    OP_REQUIRES_OK_ASYNC(context, GetFilledTable(context, 0, table.get()),
                         done);
    if ((*table)->table().options().fixed_capacity == 0 ||
        context->step_container() == nullptr) {
      context->SetStatus(LookUp(context, *table));
      return done();
    }
    // What a step counts belongs to what it writes: a save has both or none.
    BeginWritesOfStep(
        context, table->get(),
        [this, context, table, done = std::move(done)](const Status& status,
                                                       const RowWritesRef&) {
          context->SetStatus(status.ok() ? LookUp(context, *table) : status);
          done();
        });
  }

 private:
  Status LookUp(OpKernelContext* context, const TableRef& table) const {
    const tensorflow::Tensor& keys = context->input(1);
    const tensorflow::Tensor& hints = context->input(2);
    const tensorflow::Tensor& counts = context->input(3);
    TF_RETURN_IF_ERROR(CheckVector(keys, "keys"));
    TF_RETURN_IF_ERROR(CheckNumberOfKeys(keys.NumElements(), max_keys_, table));
    TF_RETURN_IF_ERROR(CheckVectorOrEmpty(hints, keys.NumElements(), "hints"));
    TF_RETURN_IF_ERROR(
        CheckVectorOrEmpty(counts, keys.NumElements(), "counts"));
    mxrec::Occurrences seen;
    seen.counts = InputSpan<int32_t>(counts);
    seen.coefficient = coefficient_;
    if (num_timestamps_ > 0) {
      const tensorflow::Tensor& timestamps = context->input(4);
      TF_RETURN_IF_ERROR(CheckTimes(timestamps, keys.NumElements()));
      seen.times = InputSpan<int64_t>(timestamps);
    }
    TF_RETURN_IF_ERROR(HoldRowsForStep(context, table));
    tensorflow::Tensor* addresses = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(0, keys.shape(), &addresses));
    return ToTf(table->table().FindOrAdmit(
        InputSpan<int64_t>(keys), InputSpan<int64_t>(hints), seen,
        OutputSpan<int64_t>(addresses), TfParallel(context)));
  }

  int64_t max_keys_ = 0;
  int64_t coefficient_ = 1;
  int num_timestamps_ = 0;
};

REGISTER_KERNEL_BUILDER(
    Name("MxRecFindOrInsert").Device(tensorflow::DEVICE_CPU), FindOrInsertOp);

}  // namespace
}  // namespace mxrec_ops

// MxRecOffsets: from addresses to rows of the variable of a fixed-capacity
// table, which get their initial values on the way.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "op_utils.h"
#include "row_writes.h"
#include "shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "variable_utils.h"
#include "variable_writers.h"

namespace mxrec_ops {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Status;

REGISTER_OP("MxRecOffsets")
    .Input("handle: resource")
    .Input("rows: resource")
    .Input("addresses: int64")
    .Output("offsets: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle addresses;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &addresses));
      c->set_output(0, addresses);
      return Status();
    })
    .Doc(R"doc(
Rows of a variable that addresses of a fixed-capacity table lead to.

A row met for the first time is written with the initial values of its key,
which depend on the table's seed and the key alone.

rows: float variable [fixed_capacity, dim].
addresses: [n].
offsets: [n], -1 where the address is 0.
)doc");

// Asynchronous: where rows may be written, it may wait for the beginning of a
// save, which waits for other steps, and those need the threads of the pool.
class OffsetsOp : public AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    TableRef table;
    OP_REQUIRES_OK_ASYNC(context, GetTable(context, 0, &table), done);
    auto& writers = VariableWriters::Global();
    const uint64_t incarnation = context->device()->attributes().incarnation();
    if (context->step_container() == nullptr) {
      writers.SetOthers(incarnation,
                        tensorflow::HandleFromInput(context, 1).name());
    } else if (!writers.OnlyReads(incarnation, name())) {
      // Held by what is called then.
      const std::shared_ptr<TableRef> held =
          std::make_shared<TableRef>(std::move(table));
      return BeginWritesOfStep(
          context, held->get(),
          [context, held, done = std::move(done)](const Status& status,
                                                  const RowWritesRef& writes) {
            context->SetStatus(status.ok()
                                   ? LookUp(context, *held, writes->writes())
                                   : status);
            done();
          });
    }
    context->SetStatus(LookUp(context, table, nullptr));
    done();
  }

 private:
  // `writes` is null if no row of the offsets will be written.
  static Status LookUp(OpKernelContext* context, const TableRef& table,
                       mxrec::RowWrites* writes) {
    const tensorflow::Tensor& addresses = context->input(2);
    TF_RETURN_IF_ERROR(CheckVector(addresses, "addresses"));
    // Offsets are not checked again; addresses may come from an earlier step.
    TF_RETURN_IF_ERROR(HoldRowsForStep(context, table));
    tensorflow::Tensor* offsets = nullptr;
    TF_RETURN_IF_ERROR(
        context->allocate_output(0, addresses.shape(), &offsets));
    bool all_initialized = false;
    TF_RETURN_IF_ERROR(ToTf(table->table().Offsets(
        InputSpan<int64_t>(addresses), OutputSpan<int64_t>(offsets),
        &all_initialized)));
    if (writes != nullptr) {
      TF_RETURN_IF_ERROR(
          ToTf(table->table().KeepRows(InputSpan<int64_t>(*offsets), writes)));
    }
    // A row that has been initialized is in a variable that exists; who reads
    // no row still reads the variable.
    const auto values = offsets->flat<int64_t>();
    const bool reads_rows =
        values.size() > 0 &&
        std::find(values.data(), values.data() + values.size(), -1) ==
            values.data() + values.size();
    if (all_initialized && reads_rows) return Status();
    return Initialize(context, table, *offsets);
  }

  static Status Initialize(OpKernelContext* context, const TableRef& table,
                           const tensorflow::Tensor& offsets) {
    RowsOfVariable rows;
    TF_RETURN_IF_ERROR(rows.Lock(context, 1, table));
    float* const data = rows.data();
    const int dim = table->table().options().dim;
    return ToTf(table->table().InitializeRows(
        InputSpan<int64_t>(offsets), [&](int64_t offset, const float* initial) {
          std::memcpy(data + offset * dim, initial, dim * sizeof(float));
        }));
  }
};

REGISTER_KERNEL_BUILDER(Name("MxRecOffsets").Device(tensorflow::DEVICE_CPU),
                        OffsetsOp);

}  // namespace
}  // namespace mxrec_ops

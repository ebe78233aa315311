// MxRecOffsets: from addresses to rows of the variable of a fixed-capacity
// table, which get their initial values on the way.
#include <cstring>

#include "op_utils.h"
#include "shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/resource_var.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernel;
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

class OffsetsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TableRef table;
    OP_REQUIRES_OK(context, GetTable(context, 0, &table));
    const tensorflow::Tensor& addresses = context->input(2);
    OP_REQUIRES_OK(context, CheckVector(addresses, "addresses"));
    tensorflow::Tensor* offsets = nullptr;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, addresses.shape(), &offsets));
    bool all_initialized = false;
    OP_REQUIRES_OK(context,
                   ToTf(table->table().Offsets(InputSpan<int64_t>(addresses),
                                               OutputSpan<int64_t>(offsets),
                                               &all_initialized)));
    if (all_initialized) return;
    OP_REQUIRES_OK(context, Initialize(context, &table->table(), *offsets));
  }

 private:
  static Status Initialize(OpKernelContext* context, mxrec::Table* table,
                           const tensorflow::Tensor& offsets) {
    tensorflow::core::RefCountPtr<tensorflow::Var> variable;
    const mxrec::TableOptions& options = table->options();
    if (!tensorflow::LookupResource(
             context, tensorflow::HandleFromInput(context, 1), &variable)
             .ok()) {
      return tensorflow::errors::FailedPrecondition(
          "table '", options.name,
          "': its variable has no value yet; run global_variables_initializer "
          "first");
    }
    tensorflow::mutex_lock lock(*variable->mu());
    tensorflow::Tensor* rows = variable->tensor();
    if (rows->dtype() != tensorflow::DT_FLOAT || rows->dims() != 2 ||
        rows->dim_size(0) != options.fixed_capacity ||
        rows->dim_size(1) != options.dim) {
      return tensorflow::errors::FailedPrecondition(
          "table '", options.name, "': its variable must be float [",
          options.fixed_capacity, ", ", options.dim, "], got ",
          tensorflow::DataTypeString(rows->dtype()), " ",
          rows->shape().DebugString(), "; run its initializer first");
    }
    TF_RETURN_IF_ERROR(MakeUnshared(context, rows));
    float* data = rows->flat<float>().data();
    const size_t row_bytes = options.dim * sizeof(float);
    return ToTf(table->InitializeRows(
        mxrec::Span<const int64_t>(offsets.flat<int64_t>().data(),
                                   offsets.NumElements()),
        [&](int64_t offset, const float* initial) {
          std::memcpy(data + offset * options.dim, initial, row_bytes);
        }));
  }

  // Who has read the variable may still hold its buffer.
  static Status MakeUnshared(OpKernelContext* context,
                             tensorflow::Tensor* rows) {
    if (rows->RefCountIsOne()) return Status();
    tensorflow::Tensor copy;
    TF_RETURN_IF_ERROR(
        context->allocate_temp(rows->dtype(), rows->shape(), &copy));
    std::memcpy(copy.flat<float>().data(), rows->flat<float>().data(),
                rows->TotalBytes());
    *rows = copy;
    return Status();
  }
};

REGISTER_KERNEL_BUILDER(Name("MxRecOffsets").Device(tensorflow::DEVICE_CPU),
                        OffsetsOp);

}  // namespace
}  // namespace mxrec_ops

// MxRecEvict: evicts the keys of a table that were not seen for long.
#include "op_utils.h"
#include "shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;

REGISTER_OP("MxRecEvict")
    .Input("handle: resource")
    .Input("threshold: int64")
    .Output("evicted: int64")
    .Output("evicted_candidates: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle scalar;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &scalar));
      c->set_output(0, c->Scalar());
      c->set_output(1, c->Scalar());
      return tensorflow::Status();
    })
    .Doc(R"doc(
Evicts keys of which the newest time of the table is at least threshold later than
the time at which they were last seen. Lookups go on meanwhile.

threshold: [], seconds; negative: the table's eviction_threshold.
evicted: [], keys that had a row.
evicted_candidates: [], keys that had none.
)doc");

class EvictOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TableRef table;
    OP_REQUIRES_OK(context, GetTable(context, 0, &table));
    OP_REQUIRES_OK(context, CheckScalar(context->input(1), "threshold"));
    int64_t threshold = context->input(1).scalar<int64_t>()();
    if (threshold < 0) {
      threshold = table->table().options().admission.eviction_threshold;
    }
    OP_REQUIRES(context, threshold >= 0,
                tensorflow::errors::FailedPrecondition(
                    "table '", table->table().options().name,
                    "' has no eviction_threshold; give one to a lookup of it"));
    mxrec::Evicted evicted;
    OP_REQUIRES_OK(context, ToTf(table->table().Evict(threshold, &evicted)));
    OP_REQUIRES_OK(context, Emit(context, 0, evicted.keys));
    OP_REQUIRES_OK(context, Emit(context, 1, evicted.candidates));
  }

 private:
  static tensorflow::Status Emit(OpKernelContext* context, int index,
                                 int64_t value) {
    tensorflow::Tensor* tensor = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(index, {}, &tensor));
    tensor->scalar<int64_t>()() = value;
    return tensorflow::Status();
  }
};

REGISTER_KERNEL_BUILDER(Name("MxRecEvict").Device(tensorflow::DEVICE_CPU),
                        EvictOp);

}  // namespace
}  // namespace mxrec_ops

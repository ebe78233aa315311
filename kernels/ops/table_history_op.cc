// MxRecTableHistory: what a table knows of the keys it has seen.
#include <algorithm>
#include <numeric>
#include <vector>

#include "op_utils.h"
#include "shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;

REGISTER_OP("MxRecTableHistory")
    .Input("handle: resource")
    .Output("keys: int64")
    .Output("counts: int64")
    .Output("times: int64")
    .Output("has_row: bool")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      const auto n = c->Vector(c->UnknownDim());
      for (int i = 0; i < 4; ++i) c->set_output(i, n);
      return tensorflow::Status();
    })
    .Doc(R"doc(
All keys that a table counts, sorted: those that have a row, and candidates.

keys: [n].
counts: [n], 0 where they are not recorded.
times: [n], when each was last seen; 0 where that is not recorded.
has_row: [n].
)doc");

class TableHistoryOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TableRef table;
    OP_REQUIRES_OK(context, GetTable(context, 0, &table));
    std::vector<Seen> seen;
    OP_REQUIRES_OK(
        context,
        ToTf(table->table().Export(
            kChunk, [&seen](const mxrec::ExportChunk& chunk) {
              for (int64_t i = 0; i < chunk.keys.size(); ++i) {
                seen.push_back(
                    {chunk.keys[i], chunk.counts.empty() ? 0 : chunk.counts[i],
                     chunk.times.empty() ? 0 : chunk.times[i], true});
              }
              return mxrec::Status::Ok();
            })));
    OP_REQUIRES_OK(context,
                   ToTf(table->table().ExportCandidates(
                       kChunk, [&seen](const mxrec::CandidateChunk& chunk) {
                         for (int64_t i = 0; i < chunk.keys.size(); ++i) {
                           seen.push_back({chunk.keys[i], chunk.counts[i],
                                           chunk.times[i], false});
                         }
                         return mxrec::Status::Ok();
                       })));
    std::sort(seen.begin(), seen.end(),
              [](const Seen& a, const Seen& b) { return a.key < b.key; });
    OP_REQUIRES_OK(context, Emit<int64_t>(context, 0, seen, &Seen::key));
    OP_REQUIRES_OK(context, Emit<int64_t>(context, 1, seen, &Seen::count));
    OP_REQUIRES_OK(context, Emit<int64_t>(context, 2, seen, &Seen::time));
    OP_REQUIRES_OK(context, Emit<bool>(context, 3, seen, &Seen::has_row));
  }

 private:
  static constexpr int64_t kChunk = 1 << 14;
  struct Seen {
    int64_t key;
    int64_t count;
    int64_t time;
    bool has_row;
  };

  template <typename T>
  static tensorflow::Status Emit(OpKernelContext* context, int index,
                                 const std::vector<Seen>& seen,
                                 T Seen::* member) {
    tensorflow::Tensor* tensor = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(
        index, {static_cast<int64_t>(seen.size())}, &tensor));
    auto out = tensor->flat<T>();
    for (size_t i = 0; i < seen.size(); ++i) {
      out(static_cast<int64_t>(i)) = seen[i].*member;
    }
    return tensorflow::Status();
  }
};

REGISTER_KERNEL_BUILDER(
    Name("MxRecTableHistory").Device(tensorflow::DEVICE_CPU), TableHistoryOp);

}  // namespace
}  // namespace mxrec_ops

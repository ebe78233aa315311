// MxRecTableExport: the content of a table, sorted by key.
#include <algorithm>
#include <numeric>

#include "op_utils.h"
#include "shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;

REGISTER_OP("MxRecTableExport")
    .Input("handle: resource")
    .Output("keys: int64")
    .Output("rows: float")
    .Output("counts: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      const auto n = c->UnknownDim();
      c->set_output(0, c->Vector(n));
      c->set_output(1, c->Matrix(n, c->UnknownDim()));
      c->set_output(2, c->Vector(n));
      return tensorflow::Status();
    })
    .Doc(R"doc(
All keys of a table with their rows, of one instant, sorted by key.

keys: [n].
rows: [n, stride], the embedding and then the optimizer's slots.
counts: [n], occurrences; 0 where the table does not record counts.
)doc");

constexpr int64_t kExportChunkRows = 1 << 14;

class TableExportOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TableRef table;
    OP_REQUIRES_OK(context, GetTable(context, 0, &table));
    std::vector<int64_t> keys;
    std::vector<float> rows;
    std::vector<int64_t> counts;
    int64_t stride = table->table().stride();
    OP_REQUIRES_OK(
        context,
        ToTf(table->table().Export(
            kExportChunkRows, [&](const mxrec::ExportChunk& chunk) {
              if (!chunk.keys.empty()) {
                stride = chunk.rows.size() / chunk.keys.size();
              }
              keys.insert(keys.end(), chunk.keys.begin(), chunk.keys.end());
              rows.insert(rows.end(), chunk.rows.begin(), chunk.rows.end());
              counts.insert(counts.end(), chunk.counts.begin(),
                            chunk.counts.end());
              return mxrec::Status::Ok();
            })));
    counts.resize(keys.size(), 0);
    OP_REQUIRES_OK(context, Emit(context, keys, rows, counts, stride));
  }

 private:
  static tensorflow::Status Emit(OpKernelContext* context,
                                 const std::vector<int64_t>& keys,
                                 const std::vector<float>& rows,
                                 const std::vector<int64_t>& counts,
                                 int64_t stride) {
    const int64_t n = static_cast<int64_t>(keys.size());
    std::vector<int64_t> order(n);
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&keys](int64_t a, int64_t b) { return keys[a] < keys[b]; });
    tensorflow::Tensor* keys_out = nullptr;
    tensorflow::Tensor* rows_out = nullptr;
    tensorflow::Tensor* counts_out = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {n}, &keys_out));
    TF_RETURN_IF_ERROR(context->allocate_output(1, {n, stride}, &rows_out));
    TF_RETURN_IF_ERROR(context->allocate_output(2, {n}, &counts_out));
    float* row_data = rows_out->flat<float>().data();
    for (int64_t i = 0; i < n; ++i) {
      const int64_t from = order[i];
      keys_out->flat<int64_t>()(i) = keys[from];
      counts_out->flat<int64_t>()(i) = counts[from];
      std::copy_n(rows.data() + from * stride, stride, row_data + i * stride);
    }
    return tensorflow::Status();
  }
};

REGISTER_KERNEL_BUILDER(Name("MxRecTableExport").Device(tensorflow::DEVICE_CPU),
                        TableExportOp);

}  // namespace
}  // namespace mxrec_ops

// MxRecPrepareMany: MxRecUnique and MxRecLookAhead for several lookups.
#include "many_utils.h"
#include "mxrec/table.h"
#include "shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Status;

REGISTER_OP("MxRecPrepareMany")
    .Input("handles: N * resource")
    .Input("ids: N * Tids")
    .Output("keys: N * int64")
    .Output("restores: N * int32")
    .Output("counts: N * int32")
    .Output("hints: N * int64")
    .Attr("N: int >= 1")
    .Attr("Tids: {int32, int64} = DT_INT64")
    .Attr("reserve: bool = false")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      int n = 0;
      TF_RETURN_IF_ERROR(c->GetAttr("N", &n));
      for (int i = 0; i < n; ++i) {
        const ShapeHandle keys = c->Vector(c->UnknownDim());
        c->set_output(i, keys);
        c->set_output(n + i, c->input(n + i));
        c->set_output(2 * n + i, keys);
        c->set_output(3 * n + i, keys);
      }
      return Status();
    })
    .Doc(R"doc(
For each i what MxRecUnique(ids[i]) and MxRecLookAhead(handles[i], keys) give.

handles: tables; one may occur several times.
ids: of any shapes.
keys: [n_i], the distinct ids in order of first occurrence.
restores: of the shapes of ids, the position of each id in its keys.
counts: [n_i], how often each key occurs.
hints: [n_i], 0 where there is no row.
)doc");

template <typename T>
class PrepareManyOp : public OpKernel {
 public:
  explicit PrepareManyOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("N", &n_));
    OP_REQUIRES_OK(context, context->GetAttr("reserve", &reserve_));
  }

  void Compute(OpKernelContext* context) override {
    std::vector<TableRef> tables(n_);
    std::vector<tensorflow::Tensor*> restores(n_);
    std::vector<int64_t> sizes(n_);
    for (int i = 0; i < n_; ++i) {
      const tensorflow::Tensor& ids = context->input(n_ + i);
      OP_REQUIRES_OK(context, GetTable(context, i, &tables[i]));
      sizes[i] = ids.NumElements();
      OP_REQUIRES(context, sizes[i] <= INT32_MAX,
                  AtTable(tables[i], tensorflow::errors::InvalidArgument(
                                         "ids must have at most ", INT32_MAX,
                                         " elements, got ", sizes[i])));
      OP_REQUIRES_OK(
          context, context->allocate_output(n_ + i, ids.shape(), &restores[i]));
    }
    std::vector<std::vector<mxrec::Key>> keys(n_);
    std::vector<std::vector<int32_t>> counts(n_);
    std::vector<std::vector<mxrec::Address>> hints(n_);
    OP_REQUIRES_OK(
        context,
        ForEachTable(
            context, sizes, [&](int i, const mxrec::Parallel& parallel) {
              mxrec::Unique<T>(InputSpan<T>(context->input(n_ + i)), &keys[i],
                               restores[i]->template flat<int32_t>().data(),
                               &counts[i]);
              hints[i].resize(keys[i].size());
              return ToTf(tables[i]->table().LookAhead(keys[i], reserve_,
                                                       hints[i], parallel));
            }));
    for (int i = 0; i < n_; ++i) {
      OP_REQUIRES_OK(context, Emit<int64_t>(context, i, keys[i]));
      OP_REQUIRES_OK(context, Emit<int32_t>(context, 2 * n_ + i, counts[i]));
      OP_REQUIRES_OK(context, Emit<int64_t>(context, 3 * n_ + i, hints[i]));
    }
  }

 private:
  template <typename U, typename V>
  static Status Emit(OpKernelContext* context, int index,
                     const std::vector<V>& values) {
    tensorflow::Tensor* tensor = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(
        index, {static_cast<int64_t>(values.size())}, &tensor));
    std::copy(values.begin(), values.end(), tensor->flat<U>().data());
    return Status();
  }

  int n_ = 0;
  bool reserve_ = false;
};

REGISTER_KERNEL_BUILDER(Name("MxRecPrepareMany")
                            .Device(tensorflow::DEVICE_CPU)
                            .TypeConstraint<int32_t>("Tids"),
                        PrepareManyOp<int32_t>);
REGISTER_KERNEL_BUILDER(Name("MxRecPrepareMany")
                            .Device(tensorflow::DEVICE_CPU)
                            .TypeConstraint<int64_t>("Tids"),
                        PrepareManyOp<int64_t>);

}  // namespace
}  // namespace mxrec_ops

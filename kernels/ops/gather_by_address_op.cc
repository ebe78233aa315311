// MxRecGatherByAddress: the embeddings at addresses.
#include "op_utils.h"
#include "shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

REGISTER_OP("MxRecGatherByAddress")
    .Input("handle: resource")
    .Input("addresses: int64")
    .Input("default_row: float")
    .Output("embeddings: float")
    .Attr("dim: int >= 1")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      int dim = 0;
      TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
      ShapeHandle addresses;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &addresses));
      ShapeHandle default_row;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &default_row));
      c->set_output(0, c->Matrix(c->Dim(addresses, 0), dim));
      return tensorflow::Status();
    })
    .Doc(R"doc(
Copies the embeddings at addresses.

addresses: [n]; 0 means no row.
default_row: [dim] or [0] (zeros), given where the address is 0.
embeddings: [n, dim].
)doc");

class GatherByAddressOp : public OpKernel {
 public:
  explicit GatherByAddressOp(OpKernelConstruction* context)
      : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dim", &dim_));
  }

  void Compute(OpKernelContext* context) override {
    TableRef table;
    OP_REQUIRES_OK(context, GetTable(context, 0, &table));
    const tensorflow::Tensor& addresses = context->input(1);
    const tensorflow::Tensor& default_row = context->input(2);
    OP_REQUIRES_OK(context, CheckVector(addresses, "addresses"));
    OP_REQUIRES_OK(context, CheckVectorOrEmpty(default_row, dim_, "default_row",
                                               "dim elements"));
    const int table_dim = table->table().options().dim;
    OP_REQUIRES(context, table_dim == dim_,
                tensorflow::errors::InvalidArgument(
                    "table '", table->table().options().name, "' has dim ",
                    table_dim, ", but node ", name(), " expects ", dim_));
    tensorflow::Tensor* embeddings = nullptr;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, {addresses.NumElements(), dim_},
                                            &embeddings));
    const float* row = default_row.NumElements() == 0
                           ? nullptr
                           : default_row.flat<float>().data();
    OP_REQUIRES_OK(
        context, ToTf(table->table().Gather(InputSpan<int64_t>(addresses), row,
                                            embeddings->flat<float>().data(),
                                            TfParallel(context))));
  }

 private:
  int dim_ = 0;
};

REGISTER_KERNEL_BUILDER(
    Name("MxRecGatherByAddress").Device(tensorflow::DEVICE_CPU),
    GatherByAddressOp);

}  // namespace
}  // namespace mxrec_ops

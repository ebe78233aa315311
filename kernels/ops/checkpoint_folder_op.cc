// MxRecCheckpointFolder: names the tables of a checkpoint in a folder beside
// it.
#include <string>
#include <vector>

#include "mxrec/checkpoint_folder.h"
#include "op_utils.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;

REGISTER_OP("MxRecCheckpointFolder")
    .Input("prefix: string")
    .Input("manifests: N * string")
    .Attr("N: int >= 1")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Makes the folder `sparse-<name>` (`delta-sparse-<name>`) beside a checkpoint.

To be run when the checkpoint is complete. It also removes such folders of
checkpoints that are gone. What goes wrong is logged: the checkpoint is good.

prefix: of the checkpoint.
manifests: of its tables, results of MxRecTableSave.
)doc");

class CheckpointFolderOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, CheckScalar(context->input(0), "prefix"));
    const std::string prefix =
        context->input(0).scalar<tensorflow::tstring>()();
    std::vector<std::string> manifests;
    for (int t = 1; t < context->num_inputs(); ++t) {
      OP_REQUIRES_OK(context, CheckScalar(context->input(t), "manifest"));
      manifests.push_back(context->input(t).scalar<tensorflow::tstring>()());
    }
    const mxrec::Status status = mxrec::MakeCheckpointFolder(prefix, manifests);
    if (!status.ok()) {
      LOG(WARNING) << "checkpoint '" << prefix
                   << "' is complete, but has no folder that names its tables: "
                   << status.message();
    }
  }
};

REGISTER_KERNEL_BUILDER(
    Name("MxRecCheckpointFolder").Device(tensorflow::DEVICE_CPU),
    CheckpointFolderOp);

}  // namespace
}  // namespace mxrec_ops

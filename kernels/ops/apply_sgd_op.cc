// MxRecApplySgdByAddress: gradient descent on the rows at addresses.
#include "apply_ops.h"

namespace mxrec_ops {

REGISTER_OP("MxRecApplySgdByAddress")
    .MXREC_UPDATE_ONE()
    .MXREC_SGD_HYPERPARAMETERS()
    .Doc(R"doc(
row -= learning_rate * (gradient + weight_decay * row).

addresses: [n]; 0 is skipped; gradients of a repeated address are summed first.
gradients: [n, dim].
)doc");

REGISTER_KERNEL_BUILDER(
    Name("MxRecApplySgdByAddress").Device(tensorflow::DEVICE_CPU),
    ApplyOp<SgdRule>);

}  // namespace mxrec_ops

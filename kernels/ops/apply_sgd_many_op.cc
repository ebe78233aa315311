// MxRecApplySgdByAddressMany: gradient descent on several tables.
#include "apply_ops.h"

namespace mxrec_ops {

REGISTER_OP("MxRecApplySgdByAddressMany")
    .MXREC_UPDATE_MANY()
    .MXREC_SGD_HYPERPARAMETERS()
    .Doc(UpdateManyDoc("MxRecApplySgdByAddress"));

REGISTER_KERNEL_BUILDER(
    Name("MxRecApplySgdByAddressMany").Device(tensorflow::DEVICE_CPU),
    ApplyManyOp<SgdRule>);

}  // namespace mxrec_ops

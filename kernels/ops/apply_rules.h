// The update rules: of each the hyperparameters, as inputs and attributes of
// its ops, how they are read, and what the table does. The op of one table and
// that of several (apply_ops.h) share them; formula and source are in the doc
// of the former. MXREC_..._HYPERPARAMETERS() stands after REGISTER_OP like a
// method of it.
#ifndef MXREC_OPS_APPLY_RULES_H_
#define MXREC_OPS_APPLY_RULES_H_

#include "op_utils.h"

namespace mxrec_ops {

// A scalar float input. A rule's follow the gradients in the order of kScalars.
template <typename Params>
struct ScalarInput {
  const char* name;
  float Params::* value;
};

// A float attribute that must be at least 0.
inline tensorflow::Status ReadNonNegative(
    tensorflow::OpKernelConstruction* context, const char* attribute,
    float* value) {
  TF_RETURN_IF_ERROR(context->GetAttr(attribute, value));
  if (*value >= 0) return tensorflow::Status();
  return tensorflow::errors::InvalidArgument(
      attribute, " must not be negative, got ", *value);
}

#define MXREC_SGD_HYPERPARAMETERS() \
  Input("learning_rate: float").Attr("weight_decay: float = 0.0")

struct SgdRule {
  using Params = mxrec::SgdParams;
  static constexpr auto kUpdate = &mxrec::Table::ApplySgd;
  static constexpr ScalarInput<Params> kScalars[] = {
      {"learning_rate", &Params::learning_rate}};
  static tensorflow::Status ReadAttrs(tensorflow::OpKernelConstruction* context,
                                      Params* params) {
    return context->GetAttr("weight_decay", &params->weight_decay);
  }
};

#define MXREC_LAZY_ADAM_HYPERPARAMETERS() \
  Input("learning_rate: float")           \
      .Input("beta1: float")              \
      .Input("beta2: float")              \
      .Input("epsilon: float")

struct LazyAdamRule {
  using Params = mxrec::LazyAdamParams;
  static constexpr auto kUpdate = &mxrec::Table::ApplyLazyAdam;
  static constexpr ScalarInput<Params> kScalars[] = {
      {"learning_rate", &Params::learning_rate},
      {"beta1", &Params::beta1},
      {"beta2", &Params::beta2},
      {"epsilon", &Params::epsilon}};
  static tensorflow::Status ReadAttrs(tensorflow::OpKernelConstruction*,
                                      Params*) {
    return tensorflow::Status();
  }
};

#define MXREC_ADAM_HYPERPARAMETERS() \
  Input("step_size: float")          \
      .Input("beta1: float")         \
      .Input("beta2: float")         \
      .Input("epsilon: float")

struct AdamRule {
  using Params = mxrec::AdamParams;
  static constexpr auto kUpdate = &mxrec::Table::ApplyAdam;
  static constexpr ScalarInput<Params> kScalars[] = {
      {"step_size", &Params::step_size},
      {"beta1", &Params::beta1},
      {"beta2", &Params::beta2},
      {"epsilon", &Params::epsilon}};
  static tensorflow::Status ReadAttrs(tensorflow::OpKernelConstruction*,
                                      Params*) {
    return tensorflow::Status();
  }
};

#define MXREC_ADAGRAD_HYPERPARAMETERS()               \
  Input("learning_rate: float")                       \
      .Attr("initial_accumulator_value: float = 0.9") \
      .Attr("epsilon: float = 1e-7")                  \
      .Attr("root_epsilon: float = 0.0")

struct AdagradRule {
  using Params = mxrec::AdagradParams;
  static constexpr auto kUpdate = &mxrec::Table::ApplyAdagrad;
  static constexpr ScalarInput<Params> kScalars[] = {
      {"learning_rate", &Params::learning_rate}};
  static tensorflow::Status ReadAttrs(tensorflow::OpKernelConstruction* context,
                                      Params* params) {
    TF_RETURN_IF_ERROR(ReadNonNegative(context, "initial_accumulator_value",
                                       &params->initial_accumulator_value));
    TF_RETURN_IF_ERROR(ReadNonNegative(context, "epsilon", &params->epsilon));
    return ReadNonNegative(context, "root_epsilon", &params->root_epsilon);
  }
};

#define MXREC_FTRL_HYPERPARAMETERS()                  \
  Input("learning_rate: float")                       \
      .Attr("learning_rate_power: float = -0.5")      \
      .Attr("initial_accumulator_value: float = 0.1") \
      .Attr("l1: float = 0.0")                        \
      .Attr("l2: float = 0.0")                        \
      .Attr("l2_shrinkage: float = 0.0")

struct FtrlRule {
  using Params = mxrec::FtrlParams;
  static constexpr auto kUpdate = &mxrec::Table::ApplyFtrl;
  static constexpr ScalarInput<Params> kScalars[] = {
      {"learning_rate", &Params::learning_rate}};
  static tensorflow::Status ReadAttrs(tensorflow::OpKernelConstruction* context,
                                      Params* params) {
    TF_RETURN_IF_ERROR(
        context->GetAttr("learning_rate_power", &params->learning_rate_power));
    if (params->learning_rate_power > 0) {
      return tensorflow::errors::InvalidArgument(
          "learning_rate_power must not be positive, got ",
          params->learning_rate_power);
    }
    TF_RETURN_IF_ERROR(ReadNonNegative(context, "initial_accumulator_value",
                                       &params->initial_accumulator_value));
    TF_RETURN_IF_ERROR(ReadNonNegative(context, "l1", &params->l1));
    TF_RETURN_IF_ERROR(ReadNonNegative(context, "l2", &params->l2));
    return ReadNonNegative(context, "l2_shrinkage", &params->l2_shrinkage);
  }
};

}  // namespace mxrec_ops

#endif  // MXREC_OPS_APPLY_RULES_H_

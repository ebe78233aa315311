// Error values of the core. No exceptions cross the core's boundary.
#ifndef MXREC_STATUS_H_
#define MXREC_STATUS_H_

#include <string>
#include <utility>

namespace mxrec {

enum class Code {
  kOk,
  kInvalidArgument,
  kFailedPrecondition,
  kResourceExhausted,
  kInternal,
  kNotFound,
  kPermissionDenied,
  kDataLoss,
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message)
      : code_(code), message_(std::move(message)) {}

  static Status Ok() { return Status(); }
  static Status InvalidArgument(std::string m) {
    return Status(Code::kInvalidArgument, std::move(m));
  }
  static Status FailedPrecondition(std::string m) {
    return Status(Code::kFailedPrecondition, std::move(m));
  }
  static Status ResourceExhausted(std::string m) {
    return Status(Code::kResourceExhausted, std::move(m));
  }
  static Status Internal(std::string m) {
    return Status(Code::kInternal, std::move(m));
  }
  static Status NotFound(std::string m) {
    return Status(Code::kNotFound, std::move(m));
  }
  static Status PermissionDenied(std::string m) {
    return Status(Code::kPermissionDenied, std::move(m));
  }
  static Status DataLoss(std::string m) {
    return Status(Code::kDataLoss, std::move(m));
  }

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

}  // namespace mxrec

#endif  // MXREC_STATUS_H_

#include <mutex>
#include <unordered_map>
#include <utility>

#include "mxrec/table.h"

namespace mxrec {

struct Registry::Impl {
  mutable std::mutex mutex;
  std::unordered_map<std::string, std::vector<std::weak_ptr<Table>>> tables;
};

Registry::Registry() : impl_(new Impl) {}
Registry::~Registry() = default;

Registry& Registry::Global() {
  static Registry* registry = new Registry;
  return *registry;
}

void Registry::Register(const std::shared_ptr<Table>& table) {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  auto& same_name = impl_->tables[table->options().name];
  std::vector<std::weak_ptr<Table>> live;
  for (auto& weak : same_name) {
    if (!weak.expired()) live.push_back(std::move(weak));
  }
  live.push_back(table);
  same_name = std::move(live);
}

std::shared_ptr<Table> Registry::Find(const std::string& name) const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  const auto it = impl_->tables.find(name);
  if (it == impl_->tables.end()) return nullptr;
  for (auto weak = it->second.rbegin(); weak != it->second.rend(); ++weak) {
    std::shared_ptr<Table> table = weak->lock();
    if (table != nullptr && !table->released()) return table;
  }
  return nullptr;
}

int Registry::ReleaseAll() {
  std::vector<std::shared_ptr<Table>> live;
  {
    std::lock_guard<std::mutex> lock(impl_->mutex);
    for (auto& entry : impl_->tables) {
      for (auto& weak : entry.second) {
        std::shared_ptr<Table> table = weak.lock();
        if (table != nullptr && !table->released()) {
          live.push_back(std::move(table));
        }
      }
    }
    impl_->tables.clear();
  }
  // Outside the lock: a release waits for the operations under way.
  for (const auto& table : live) table->Release();
  return static_cast<int>(live.size());
}

}  // namespace mxrec

#include <algorithm>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

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
  // Dead tables are forgotten here: there are few tables, seldom a new one.
  for (auto entry = impl_->tables.begin(); entry != impl_->tables.end();) {
    auto& same_name = entry->second;
    same_name.erase(std::remove_if(same_name.begin(), same_name.end(),
                                   [](const std::weak_ptr<Table>& weak) {
                                     return weak.expired();
                                   }),
                    same_name.end());
    entry = same_name.empty() ? impl_->tables.erase(entry) : std::next(entry);
  }
  impl_->tables[table->options().name].push_back(table);
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

std::vector<std::shared_ptr<Table>> Registry::Live() const {
  std::vector<std::shared_ptr<Table>> live;
  std::lock_guard<std::mutex> lock(impl_->mutex);
  for (const auto& entry : impl_->tables) {
    for (const auto& weak : entry.second) {
      std::shared_ptr<Table> table = weak.lock();
      if (table != nullptr && !table->released()) {
        live.push_back(std::move(table));
      }
    }
  }
  return live;
}

int Registry::ReleaseAll() {
  const std::vector<std::shared_ptr<Table>> live = Live();
  {
    std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->tables.clear();
  }
  // Outside the lock: a release waits for the operations under way.
  for (const auto& table : live) table->Release();
  return static_cast<int>(live.size());
}

}  // namespace mxrec

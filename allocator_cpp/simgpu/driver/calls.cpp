#include "calls.h"

#include <cstring>

namespace simgpu {

constexpr int kCalls = static_cast<int>(Call::kCount);

Calls::Calls() : records_(kCalls) {
  for (int i = 0; i < kCalls; ++i) {
    first_of_name_[i] = i;
    for (int j = 0; j < i; ++j) {
      if (std::strcmp(kEntryPoints[i].name, kEntryPoints[j].name) == 0) {
        first_of_name_[i] = j;
        break;
      }
    }
  }
}

Result Calls::begin(Call call) {
  Record& record = records_[first_of_name_[static_cast<int>(call)]];
  ++record.calls;
  add_cost(record.per_call);
  Result error = kSuccess;
  for (Fault& fault : record.faults) {
    ++fault.seen;
    if (fault.seen >= fault.first && fault.seen <= fault.last) error = fault.error;
  }
  return error;
}

void Calls::charge(Call call, double mappings, double bytes) {
  const Record& record = records_[first_of_name_[static_cast<int>(call)]];
  add_cost(record.per_mapping * mappings + record.per_mib * bytes / (1 << 20));
}

void Calls::add_cost(double us) {
  charged_us += us;
  if (cost_moves_clock) clock_us += us;
}

int Calls::find(const char* name) const {
  if (name == nullptr) return -1;
  for (int i = 0; i < kCalls; ++i) {
    if (std::strcmp(kEntryPoints[i].name, name) == 0 || std::strcmp(kEntryPoints[i].symbol, name) == 0)
      return first_of_name_[i];
  }
  return -1;
}

int64_t Calls::count(const char* name) const {
  if (name != nullptr) {
    int i = find(name);
    return i < 0 ? -1 : records_[i].calls;
  }
  int64_t sum = 0;
  for (int i = 0; i < kCalls; ++i) {
    bool memory = std::strncmp(kEntryPoints[i].name, "cuMem", 5) == 0 &&
                  std::strncmp(kEntryPoints[i].name, "cuMemcpy", 8) != 0 &&
                  std::strncmp(kEntryPoints[i].name, "cuMemset", 8) != 0;
    if (memory) sum += records_[i].calls;
  }
  return sum;
}

std::string Calls::json() const {
  std::string text = "{";
  for (int i = 0; i < kCalls; ++i) {
    if (records_[i].calls == 0) continue;
    if (text.size() > 1) text += ", ";
    text += std::string("\"") + kEntryPoints[i].name + "\": " + std::to_string(records_[i].calls);
  }
  return text + "}";
}

void Calls::reset_counts() {
  for (Record& record : records_) record.calls = 0;
}

bool Calls::set_cost(const char* name, double per_call, double per_mapping, double per_mib) {
  int i = find(name);
  if (i < 0) return false;
  records_[i].per_call = per_call;
  records_[i].per_mapping = per_mapping;
  records_[i].per_mib = per_mib;
  return true;
}

void Calls::clear_costs() {
  for (Record& record : records_) record.per_call = record.per_mapping = record.per_mib = 0;
}

bool Calls::fail(const char* name, int64_t nth, int64_t times, Result error) {
  int i = find(name);
  if (i < 0 || nth < 1 || times < 0) return false;
  records_[i].faults.push_back({nth, times == 0 ? INT64_MAX : nth + times - 1, 0, error});
  return true;
}

void Calls::clear_faults() {
  for (Record& record : records_) record.faults.clear();
}

}  // namespace simgpu

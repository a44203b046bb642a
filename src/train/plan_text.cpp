#include <fmt/format.h>

#include <set>

#include "train/plan_output.h"

namespace spillway {
namespace {

class PlanText {
 public:
  PlanText(const PlanAnswer& answer, const Workload& workload)
      : report_(answer.report), plan_(report_.plan), workload_(workload) {}

  std::string run() {
    verdict();
    classes();
    names();
    order();
    limits();
    time();
    return std::move(text_);
  }

 private:
  template <class... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    text_ += fmt::format(format, std::forward<Args>(args)...) + "\n";
  }

  void verdict() {
    const Topology& t = workload_.topology;
    const Budgets& budgets = workload_.input.budgets;
    line("{} on {}: {} rank{}, {} tokens a step", report_.fits ? "fits" : "does not fit",
         workload_.input.profile.name, t.ranks, t.ranks == 1 ? "" : "s", workload_.tokens_per_step);
    line("  device budget {}, host budget {}", format_bytes(budgets.device),
         format_bytes(budgets.host));
  }

  void classes() {
    std::set<std::string> names;
    for (const TierUse* use : {&plan_.device, &plan_.host})
      for (const auto& [name, bytes] : use->by_class) names.insert(name);
    const auto cell = [](const TierUse& use, const std::string& name) {
      const auto it = use.by_class.find(name);
      return it == use.by_class.end() ? std::string("-") : format_bytes(it->second);
    };
    line("  {:<26} {:>12} {:>12}", "class", "device", "host");
    for (const std::string& name : names)
      line("  {:<26} {:>12} {:>12}", name, cell(plan_.device, name), cell(plan_.host, name));
    line("  {:<26} {:>12} {:>12}", "total", format_bytes(plan_.device.peak),
         format_bytes(plan_.host.peak));
  }

  void names() {
    line("  {:<26} {:>12} {:>12} {:>12} {:>12}", "tensors by layer", "resident", "streamed",
         "recomputed", "sharded");
    const Schedule& train = workload_.train.get(plan_.schedule);
    for (const auto& [name, n] : counts_by_name(plan_, train))
      line("  {:<26} {:>12} {:>12} {:>12} {:>12}", name, n.resident, n.streamed, n.recomputed,
           n.sharded);
  }

  void order() {
    const int rotated = rotated_layers(plan_.schedule);
    line("  order                      {} of {} micro-batches at a time in each layer; {}",
         plan_.schedule.group, workload_.spec.micro_batches,
         rotated == 0 ? std::string("updates at the end of the step")
                      : fmt::format("updates of {} layers in the next forward pass", rotated));
    if (!workload_.spec.zero_is_free) return;
    std::string stages;
    for (size_t stage = 0; const int layers : layers_of_stage(plan_, workload_)) {
      if (layers > 0)
        stages += fmt::format("{}ZeRO-{} in {} layers", stages.empty() ? "" : ", ", stage, layers);
      ++stage;
    }
    line("  shared by ranks            {}", stages);
  }

  void limits() {
    line("  besides the arenas         {:>12} of host memory a rank at most (process, libraries)",
         format_bytes(kProcessReserveBytes));
    line("  minimum device memory      {:>12}, with {} of host memory",
         format_bytes(report_.device_minimum_bytes), format_bytes(report_.host_of_minimum_bytes));
    line("  all resident               {:>12}, {:.2f} ms a step",
         format_bytes(report_.all_resident_device_bytes), 1e3 * report_.all_resident_step_seconds);
    if (report_.no_offload_device_bytes > 0)
      line("  without offload            {:>12}, {:.2f} ms a step",
           format_bytes(report_.no_offload_device_bytes), 1e3 * report_.no_offload_step_seconds);
    else
      line("  without offload            no plan found that fits");
  }

  void time() {
    const double step = plan_.step_seconds;
    line(
        "  predicted step time        {:.2f} ms, exposed transfer {:.2f} ms ({:.1f} %), MFU {:.1f} "
        "%",
        1e3 * step, 1e3 * plan_.exposed_transfer_seconds,
        step > 0 ? 100 * plan_.exposed_transfer_seconds / step : 0.0, 100 * plan_.mfu);
    if (report_.bound_seconds > 0)
      line("  no plan can be faster than {:.2f} ms: at most {:.2f} % are left",
           1e3 * report_.bound_seconds, 100 * (step / report_.bound_seconds - 1));
  }

  const PlanReport& report_;
  const Plan& plan_;
  const Workload& workload_;
  std::string text_;
};

}  // namespace

std::string plan_text(const PlanAnswer& answer, const Workload& workload) {
  return PlanText(answer, workload).run();
}

}  // namespace spillway

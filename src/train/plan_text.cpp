#include <fmt/format.h>

#include <set>

#include "train/plan_output.h"

namespace spillway {
namespace {

class PlanText {
 public:
  PlanText(const PlanAnswer& answer, const Workload& workload)
      : answer_(answer), report_(answer.report), plan_(report_.plan), workload_(workload) {}

  std::string run() {
    verdict();
    classes();
    names();
    order();
    limits();
    time();
    changes();
    marginals();
    pareto();
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
    const int on_host = layers_updated_on_host(plan_.schedule);
    line("  order                      {} of {} micro-batches at a time in each layer; {}{}",
         plan_.schedule.group, workload_.spec.micro_batches,
         rotated == 0 ? std::string("updates at the end of the step")
                      : fmt::format("updates of {} layers in the next forward pass", rotated),
         on_host == 0 ? std::string() : fmt::format(", of {} on the host", on_host));
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
        1e3 * step, 1e3 * plan_.exposed_transfer_seconds(),
        step > 0 ? 100 * plan_.exposed_transfer_seconds() / step : 0.0, 100 * plan_.mfu);
    const auto waits_ms = [&](Lane lane) { return 1e3 * plan_.exposed[static_cast<size_t>(lane)]; };
    line(
        "  compute waits for          {:.2f} ms of copies in, {:.2f} ms out, {:.2f} ms of "
        "communication, {:.2f} ms of CPU updates",
        waits_ms(Lane::h2d), waits_ms(Lane::d2h), waits_ms(Lane::comm), waits_ms(Lane::cpu));
    if (report_.bound_seconds > 0)
      line("  no plan can be faster than {:.2f} ms: at most {:.2f} % are left",
           1e3 * report_.bound_seconds, 100 * (step / report_.bound_seconds - 1));
  }

  void changes() {
    if (report_.fits) return;
    line("  {}", answer_.changes.empty() ? "no change that was tried makes it fit"
                                         : "what makes it fit, planned:");
    for (const Change& c : answer_.changes) {
      std::string keys;
      for (const auto& [key, value] : c.keys)
        keys += (keys.empty() ? "" : ", ") + key + ": " + value;
      line("    {}: device {}, host {}, {:.2f} ms a step{}", keys, format_bytes(c.device_bytes),
           format_bytes(c.host_bytes), 1e3 * c.step_seconds,
           c.numerics ? "; changes the result's last bits" : "");
    }
  }

  void marginals() {
    if (!answer_.marginals) return;
    line("  more of                               by the multipliers     planned again");
    const auto saves = [](double seconds) {
      constexpr double kNothing = 5e-7;  // as printed
      return fmt::format("{:.3f} ms", seconds >= kNothing ? -1e3 * seconds : 0.0);
    };
    for (const Marginal& m : *answer_.marginals)
      line("  {:<36} {:>19} {:>17}", amount_text(m), saves(m.dual_seconds),
           saves(m.replanned_seconds));
  }

  static std::string amount_text(const Marginal& m) {
    constexpr double kGB = 1e9;
    const std::string rate = m.amount >= kGB ? fmt::format("{:g} GB/s", m.amount / kGB)
                                             : fmt::format("{:g} MB/s", m.amount / 1e6);
    switch (m.resource) {
      case Resource::device_memory:
        return format_bytes(static_cast<int64_t>(m.amount)) + " device memory";
      case Resource::host_memory:
        return format_bytes(static_cast<int64_t>(m.amount)) + " host memory";
      case Resource::link:
        return rate + " host link each way";
      case Resource::peers:
        return rate + " to devices of the node";
      case Resource::network:
        return rate + " network";
    }
    return {};
  }

  void pareto() {
    if (!answer_.pareto) return;
    line("  {:<26} {:>12} {:>12} {:>8} {:>12} {:>9} {:>10}", "fastest plan with", "step", "bound",
         "gap", "host", "streamed", "recomputed");
    const auto milliseconds = [](double seconds) {
      return fmt::format("{:.2f} ms", 1e3 * seconds);
    };
    const auto plan = [&](const std::string& name, const PlanPoint& p, double bound) {
      line("  {:<26} {:>12} {:>12} {:>8} {:>12} {:>9} {:>10}", name, milliseconds(p.step_seconds),
           bound > 0 ? milliseconds(bound) : "-",
           bound > 0 ? fmt::format("{:.2f} %", 100 * (p.step_seconds / bound - 1)) : "-",
           format_bytes(p.host_bytes), p.streamed, p.recomputed);
    };
    for (const ParetoRow& row : answer_.pareto->rows) {
      if (row.fits)
        plan(format_bytes(row.device_budget), row.plan, row.bound_seconds);
      else
        line("  {:<26} none fits {} of host memory", format_bytes(row.device_budget),
             format_bytes(workload_.input.budgets.host));
    }
    plan("all resident, " + format_bytes(answer_.pareto->all_resident.device_bytes),
         answer_.pareto->all_resident, 0);
    plan("all recomputed, " + format_bytes(answer_.pareto->full_recompute.device_bytes),
         answer_.pareto->full_recompute, 0);
  }

  const PlanAnswer& answer_;
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

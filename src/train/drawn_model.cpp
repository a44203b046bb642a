#include "train/drawn_model.h"

#include <spdlog/fmt/fmt.h>

namespace spillway {

Config config_of(const DrawnModel& m, const Config& base, int ranks) {
  const std::string text = fmt::format(
      R"({{"model":{{"family":"{}","layers":{},"hidden":{},"heads":{},"ffn":{},"context":{},"vocab":{}}},)"
      R"("data":{{"train":["drawn"],"tokenizer":"uint32"}},)"
      R"("train":{{"precision":"{}","micro_batch":{},"batch":{}}}}})",
      m.llama ? "llama" : "gpt2", m.layers, m.hidden, m.hidden / 64, (m.llama ? 3 : 4) * m.hidden,
      m.context, m.vocab, m.bf16 ? "bf16" : "f32", m.micro_batch,
      m.micro_batch * m.micro_batches * ranks);
  const Config drawn = parse_config(text, "drawn", {});
  Config c = base;
  c.model = drawn.model;
  c.data = drawn.data;
  c.train = drawn.train;
  c.train.threads = base.train.threads;
  c.memory = {};
  c.place.clear();
  c.offload = c.recompute = Mode::automatic;
  c.hardware.link = 0;
  return c;
}

}  // namespace spillway

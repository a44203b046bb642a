// What the schema cannot say: defaults that depend on other keys, and rules between keys.
#pragma once

#include <string>

#include "config/config.h"
#include "config/json_text.h"

namespace spillway {

// Sets kv_heads, head_dim, vocab and tied_head where `root`, the user's JSON, leaves them out.
void fill_model(Config& config, const Json& root, const std::string& origin);

// Throws bad_input with `origin` and both keys for the first rule that does not hold.
void check_rules(const Config& config, const Json& root, const std::string& origin);

}  // namespace spillway

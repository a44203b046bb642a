// Validation against configs/schema.json, which is built into the library. Of JSON Schema it knows
// what that file uses: type, enum, const, anyOf (the branch whose type fits), ranges, lengths,
// items, properties, required, then, additionalProperties, format bytes and rate; and the keywords
// x-….
#pragma once

#include <string>
#include <vector>

#include "config/json_text.h"

namespace spillway {

const Json& config_schema();   // the whole file
const Json& profile_schema();  // that of a hardware profile

// What schema `node` says of the key at a dotted path below it; nullptr if there is none.
const Json* schema_at(const Json& node, const std::string& path);

// A boolean or string keyword of the key at `path`, or of the nearest key above it that has it.
const Json* inherited_keyword(const Json& schema, const std::string& path,
                              const std::string& keyword);

// The schema of the object that `node` is or allows; nullptr if it allows none.
const Json* object_branch(const Json& node);

// Full paths of all keys that are no objects themselves, in the schema's order ("place", whose keys
// are free, counts as one).
std::vector<std::string> schema_keys(const Json& schema);

// Throws bad_input naming `origin`, the key's full path, what was found and what is expected.
// `complete`: required keys must be there.
void check_json(const Json& value, const Json& schema, const std::string& path,
                const std::string& origin, bool complete);

// Throws the error for a key that `schema` does not have: not supported yet, or the nearest key.
[[noreturn]] void unknown_key(const Json& schema, const std::string& path, const std::string& key,
                              const Json& value, const std::string& origin);

std::string joined(const std::string& path, const std::string& key);

}  // namespace spillway

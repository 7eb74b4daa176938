// Pieces of HTML and SVG as text.
#pragma once

#include <string>
#include <string_view>

namespace switchyard::app {

// Text with the characters that mean something in HTML replaced.
std::string Escape(std::string_view text);

// A number for people: three significant digits and no exponent.
std::string Short(double value);

// JSON for the inside of a <script>: nothing in it can end the element.
std::string ScriptSafe(std::string json);

}  // namespace switchyard::app

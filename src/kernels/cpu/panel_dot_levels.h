// The tables of levels over row panels while row_dot.h still holds the names of panel_dot.h.
// Private to kernels/cpu.
#pragma once

#include "kernels/cpu/panel_dot.h"

namespace switchyard::kernels::cpu {

extern const LevelFunctions kAvx2Panels;
extern const LevelFunctions kAvxVnniPanels;
extern const LevelFunctions kAvx512VnniPanels;

}  // namespace switchyard::kernels::cpu

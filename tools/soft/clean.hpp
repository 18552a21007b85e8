// `millrace soft clean`: what dead programs have left behind. Called by soft.cpp.
#pragma once

namespace millrace::tools {

/// Says what it looked for and what it found, and removes what can be removed (`dry_run`: only
/// says so). Returns the exit status: 1 if something could not be removed.
int clean(bool dry_run);

}  // namespace millrace::tools

/* What all models share. Included first.
 *
 * A fault is a deliberate mistake at one place of a model. scripts/check-models numbers the faults
 * of models/faults.md from 1 up, hands the numbers in as macros (-Dno_fence=2), and runs the
 * compiled model once with MODEL_fault=0, where nothing is wrong, and once with each number.
 */
c_decl {
    \#include <stdlib.h>
    static unsigned char setting(const char* name, unsigned char otherwise) {
        const char* const text = getenv(name);
        return text ? (unsigned char)atoi(text) : otherwise;
    }
}

/* Never changes after start(), so reading it is no step that others could see. */
local byte fault;

#define wrong(name) (fault == name)

inline start() {
    c_code { now.fault = setting("MODEL_fault", 0); }
}

/* What is found where a word is written while it is looked at: no value that was ever written. */
#define TORN 255

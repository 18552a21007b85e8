/* Arming a completion queue of the soft device: src/soft/objects/arming.cpp (PolledQueue::arm) and
 * src/soft/completion/completion_ring.hpp. Who makes the fence between a completion and the look at the armed
 * word: the one who arms, for everybody, with membarrier; or, once the armed word has asked for it,
 * whoever completes.
 *
 *   Completer  writes a completion, looks at the armed word, rings
 *   Owner      arms, looks once more (then the event is due at once), sleeps until the bell rings, takes the event
 *
 * Modelled: the store buffers of both processors, the bit that comes and goes at any arming, and that
 * goes while the owner polls. Left out: epochs (a bell too many), events for some completions only,
 * the page of news, whose writers fence in any case.
 */
#include "common.pml"

#ifndef ITEMS
#define ITEMS 4
#endif

/* The armed word. */
#define MODE 1   /* armed */
#define FENCED 2 /* whoever completes makes a fence */

byte entries;          /* completions that the owner can see */
bool buffered;         /* the completer's last one is not seen yet */
byte armed;            /* the word, as the completer sees it */
chan stores = [3] of { byte }; /* the owner's stores of it that are not seen yet */
bool rung;

/* Each store is seen some time. */
proctype StoreBuffers() {
end:
    do
    :: atomic { buffered -> entries++; buffered = false }
    :: atomic { stores?armed }
    od
}

proctype Completer() {
    byte written, seen;
    do
    :: written == ITEMS -> break
    :: else ->
        atomic { !buffered -> buffered = true; written++ };
        seen = armed;
        if
        :: seen & FENCED ->
            if
            :: wrong(no_own_fence)
            :: else -> !buffered
            fi;
            if
            :: wrong(looks_once)
            :: else -> seen = armed
            fi
        :: else
        fi;
        atomic {
            if
            :: seen & MODE -> rung = true
            :: else
            fi;
            seen = 0
        }
    od
}

/* Every processor's stores are visible behind it; it does not wait for what is stored meanwhile. */
inline membarrier() {
    empty(stores);
    if
    :: buffered -> entries++; buffered = false
    :: else
    fi
}

proctype Owner() {
    byte consumed;
    bool mode, fenced, often;
    do
    :: consumed == ITEMS -> break
    :: else ->
        if
        :: mode /* it is armed already */
        :: else ->
            if
            :: often = true
            :: often = false
            fi;
            mode = true;
            stores!(MODE | (often -> FENCED : 0));
            if
            :: (often && fenced) || (often && wrong(no_membarrier)) ->
                if
                :: wrong(arms_without_fence)
                :: else -> empty(stores)
                fi
            :: else -> atomic { membarrier() }
            fi;
            fenced = often
        fi;
        if
        :: entries > consumed
        :: entries == consumed ->
            atomic { rung -> rung = false }; /* sleeps */
            mode = false;
            stores!(fenced -> FENCED : 0)
        fi;
        atomic { consumed = entries };
        if
        :: skip
        :: fenced -> /* long not armed */
            stores!(mode -> MODE : 0);
            if
            :: wrong(cleared_bit_trusted)
            :: else -> fenced = false
            fi
        fi
    od
}

init {
    atomic {
        start();
        run StoreBuffers(); run Completer(); run Owner()
    }
}

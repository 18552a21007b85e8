/* Sleeping without lost wake-ups: end/wake_up.hpp, Bell and Sleeper, one direction.
 *
 *   Bell       publishes progress, posts the data, looks at the flag, posts the event
 *   Sleeper    wait_until over Sleeper: prepare, look, park, retract; sleeps without a time limit
 *   two devices, one for each direction: each executes its requests in order, at any time
 *
 * room=1: every other progress gives room back and no more. The sleeper needs room at times, and its
 * announcements say whether; who needs none is not rung for it.
 *
 * far=1: the sleeper makes the bell's fence, behind the flag's completion and before the READ.
 *
 * Modelled: requests in flight, READs and WRITEs of words that tear, the store buffer of the bell's
 * processor, completion queues that raise one event per arming, receives that events take.
 * Left out: slots of the send queue (window.pml), the limit of 50 ms on every sleep, which would
 * hide a lost wake-up, and death.
 */
#include "common.pml"

#ifndef ITEMS
#define ITEMS 3
#endif
#define RECEIVES 2

local byte far, room; /* as fault: never changes after the start */
#define NARROW 64     /* of an announcement: for no room */
#define is_room(number) (room && number % 2 == 1)

mtype = { DATA, EVENT, FLAG, READ };

/* Requests on their way. */
chan to_sleeper = [2 * ITEMS] of { mtype, byte };
chan to_bell = [3] of { mtype, byte };

/* The sleeper's memory and completion queues. */
byte arrived;                               /* items whose mark can be seen */
byte receives = RECEIVES;                   /* posted */
chan events = [RECEIVES] of { byte };       /* completions of receives: the immediate */
byte landing, landed;                       /* of the READ: the word, its part without room */
bool read_completed;                        /* in the send completion queue */
byte flag_completed;                        /* likewise: of which announcement, 0: none */
bool receives_armed, sends_armed, notified; /* notified: the completion channel is readable */

/* The bell's memory. */
byte progress, peer_sleeping;
bool buffered; /* a store of progress is not visible yet ... */
byte buffer;   /* ... which is this */

#define rings_for(number) \
    (peer_sleeping != answered && !(is_room(number) && (peer_sleeping & NARROW) != 0))

proctype Bell() {
    xs to_sleeper;
    byte produced, answered, asked;
    bool wake;
    do
    :: produced == ITEMS -> break
    :: else ->
        if
        :: wrong(look_first) -> wake = rings_for(produced + 1)
        :: else
        fi;
        atomic { !buffered -> produced++; buffer = produced; buffered = true };
        if
        :: wrong(no_fence) || far
        :: else -> !buffered /* the fence */
        fi;
        if
        :: wrong(look_first)
        :: else -> wake = rings_for(produced)
        fi;
        to_sleeper!DATA, produced;
        if
        :: wake && !wrong(never_rings) ->
            asked = peer_sleeping;
            if
            :: asked != answered ->
                to_sleeper!EVENT, asked;
                if
                :: wrong(answers_again)
                :: else -> answered = asked
                fi
            :: else
            fi;
            asked = 0
        :: else
        fi;
        wake = false
    od
}

/* Makes the bell's stores visible, some time. */
proctype StoreBuffer() {
end:
    do
    :: atomic { buffered -> progress = buffer; buffered = false }
    od
}

/* Executes the bell's requests at the sleeper. */
proctype DeviceOfBell() {
    xr to_sleeper;
    byte value;
end:
    do
    :: atomic { to_sleeper?DATA, value -> arrived = value; value = 0 }
    :: atomic {
        to_sleeper?EVENT, value ->
        assert(receives > 0); /* an event finds a receive */
        receives--;
        events!value;
        value = 0;
        if
        :: receives_armed -> receives_armed = false; notified = true
        :: else
        fi
       }
    od
}

inline raise() {
    if
    :: sends_armed -> sends_armed = false; notified = true
    :: else
    fi
}

/* Executes the sleeper's requests at the bell. Words are not copied at once. */
proctype DeviceOfSleeper() {
    xr to_bell;
    byte value;
end:
    do
    :: atomic { to_bell?FLAG, value -> peer_sleeping = TORN };
       atomic {
           peer_sleeping = value; value = 0;
           if
           :: far -> flag_completed = peer_sleeping & (NARROW - 1); raise()
           :: else
           fi
       }
    :: atomic { to_bell?READ, _ -> value = progress };
       atomic {
           landing = (progress == value -> value : TORN);
           if /* room leaves the part of the word that tells of the rest alone */
           :: room -> landed = (progress / 2 == value / 2 -> value / 2 : TORN)
           :: else
           fi;
           value = 0
       };
       atomic { /* the completion comes back */
           read_completed = true; raise()
       }
    od
}

inline take_events() {
    atomic {
        do
        :: events?immediate ->
            if
            :: wrong(receive_not_posted)
            :: else -> receives++
            fi;
            if
            :: (immediate & (NARROW - 1)) == generation -> standing = false
            :: else
            fi
        :: empty(events) -> immediate = 0; break
        od
    }
}

inline reap() {
    if
    :: read_completed -> read_completed = false; done = true
    :: else
    fi;
    if
    :: flag_completed ->
        flag_done = flag_completed == generation || wrong(any_completion);
        flag_completed = 0
    :: else
    fi
}

/* Every processor's stores are visible behind it; it does not wait for what is stored meanwhile. */
inline far_fence() {
    if
    :: wrong(no_far_fence)
    :: else ->
        if
        :: buffered -> progress = buffer; buffered = false
        :: else
        fi
    fi
}

inline start_read() {
    if
    :: !pending && !wrong(no_read) -> to_bell!READ, 0; pending = true; done = false
    :: else
    fi
}

inline announce() {
    if
    :: needs && !wide -> standing = false
    :: else
    fi;
    if
    :: !standing ->
        if
        :: pending && done -> pending = false
        :: else
        fi;
        if
        :: pending && !wrong(old_read) /* not before the old READ is back */
        :: else ->
            if
            :: wrong(read_first) -> start_read()
            :: else
            fi;
            generation++;
            fenced = !far;
            flag_done = false;
            wide = needs || !room;
            to_bell!FLAG, (wide -> generation : generation + NARROW);
            if
            :: far && wrong(early_fence) -> far_fence(); fenced = true
            :: else
            fi;
            standing = true;
            if
            :: wrong(confirmed_stays)
            :: else -> confirmed = wrong(no_read)
            fi
        fi
    :: else
    fi;
    if
    :: standing && !confirmed ->
        if
        :: !fenced ->
            reap();
            if
            :: flag_done -> far_fence(); fenced = true
            :: else
            fi
        :: else
        fi;
        if
        :: fenced -> start_read()
        :: else
        fi
    :: else
    fi
}

/* The send queue only where a completion is still to come: what has come was reaped. */
inline arm() {
    if
    :: !wrong(sends_not_armed) && ((pending && !done) || (far && standing && !flag_done)) ->
        sends_armed = true
    :: else
    fi;
    receives_armed = true
}

/* What is done with what was looked at is no step of its own: nobody sees it. */
proctype Sleeper() {
    xs to_bell;
    byte consumed, generation, immediate;
    bool standing, confirmed, pending, done, news, flag_done, fenced = true;
    bool needs, wide = true;
    byte turns; /* of needs: enough for each way */
    do
    :: room && consumed != ITEMS && turns < 2 -> turns++; needs = !needs
    :: consumed == ITEMS -> break
    :: atomic { consumed != ITEMS && arrived > consumed -> consumed++ }
    :: consumed != ITEMS && arrived <= consumed ->
        /* prepare */
        take_events();
        atomic { announce() };
        atomic { reap() };
        if
        :: wrong(armed_late)
        :: else -> arm()
        fi;
        /* the look behind it */
        if
        :: arrived > consumed -> goto retract
        :: arrived <= consumed && room && !needs && turns < 2 -> turns++; needs = true
        :: else
        fi;
        /* park */
        take_events();
        atomic {
            reap();
            if
            :: !fenced && flag_done -> goto retract /* prepare goes on with it */
            :: else
            fi;
            if
            :: !standing -> goto retract /* a nap, or the event is here */
            :: needs && !wide && !wrong(slept_narrow) -> goto retract
            :: else
            fi;
            if
            :: !confirmed && pending && done ->
                pending = false;
                if
                :: (room && !needs -> landed : landing) == TORN ->
                    if :: news = true :: news = false fi
                :: else ->
                    news = (room && !needs -> landed != consumed / 2 : landing != consumed)
                fi;
                landing = 0; landed = 0;
                if
                :: news && !wrong(news_ignored) -> news = false; goto published
                :: else -> news = false; confirmed = true
                fi
            :: else
            fi;
            if
            :: !confirmed && fenced && !pending -> goto retract /* a nap */
            :: else
            fi
        };
        if
        :: wrong(armed_late) -> arm()
        :: else
        fi;
        if /* sleeps */
        :: notified
        :: !needs && room && consumed / 2 == ITEMS / 2 -> break /* for what nobody sends */
        fi;
        goto retract;
published:
        if
        :: skip               /* a short nap */
        :: arrived > consumed /* naps until what is published is here */
        fi;
retract:
        notified = false
    od
}

init {
    atomic {
        start();
        c_code { now.far = setting("MODEL_far", 0); now.room = setting("MODEL_room", 0); };
        run Bell(); run StoreBuffer(); run DeviceOfBell(); run DeviceOfSleeper(); run Sleeper()
    }
}

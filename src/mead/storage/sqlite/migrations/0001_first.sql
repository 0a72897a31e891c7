-- Natural keys, and WITHOUT ROWID where rows are small: those of a session lie together then. Turns are large:
-- in such a table each would take a page of its own. Times are seconds since the epoch.

CREATE TABLE sessions (
    session_id     TEXT NOT NULL PRIMARY KEY,
    owner          TEXT NOT NULL,
    created_at     REAL NOT NULL,
    updated_at     REAL NOT NULL,
    title          TEXT,
    tags           TEXT NOT NULL,     -- JSON, as are options and usage below
    options        TEXT NOT NULL,
    turn_timeout_s REAL NOT NULL,
    busy           TEXT NOT NULL,
    state          BLOB,
    parent         TEXT,
    version        INTEGER NOT NULL,
    last_number    INTEGER NOT NULL,
    epoch          INTEGER NOT NULL,  -- grows whenever the session is claimed or taken over
    running        INTEGER,           -- the turn that runs, and the process that runs it
    holder         TEXT
) WITHOUT ROWID;
CREATE INDEX sessions_by_age ON sessions (owner, updated_at, session_id);
CREATE INDEX sessions_running ON sessions (holder) WHERE running IS NOT NULL;

CREATE TABLE turns (
    session_id   TEXT NOT NULL,
    number       INTEGER NOT NULL,
    owner        TEXT NOT NULL,
    status       TEXT NOT NULL CHECK (status IN ('running', 'done', 'failed', 'interrupted')),
    started_at   REAL,
    finished_at  REAL,
    reason       TEXT,
    question     BLOB,                -- until the turn has ended
    messages     BLOB,                -- once it is done
    plain        INTEGER,
    closed       INTEGER,
    route        TEXT,
    label        TEXT,
    usage        TEXT,
    tags         TEXT NOT NULL,
    key          TEXT,
    request_hash TEXT,
    answer       BLOB,
    PRIMARY KEY (session_id, number)
);
CREATE UNIQUE INDEX turns_by_key ON turns (session_id, key) WHERE key IS NOT NULL;
CREATE INDEX turns_open ON turns (session_id, number) WHERE status <> 'done';

CREATE TABLE calls (
    session_id         TEXT NOT NULL,
    turn               INTEGER NOT NULL,
    number             INTEGER NOT NULL,
    owner              TEXT NOT NULL,
    tags               TEXT NOT NULL,
    route              TEXT NOT NULL,
    provider           TEXT NOT NULL,
    model              TEXT,
    opened_at          REAL NOT NULL,
    closed_at          REAL,
    status             TEXT NOT NULL CHECK (status IN ('open', 'closed', 'unknown')),
    outcome            TEXT,
    input_tokens       INTEGER,       -- NULL is unknown
    output_tokens      INTEGER,
    cached_tokens      INTEGER,
    cache_write_tokens INTEGER,
    reasoning_tokens   INTEGER,
    cost_usd           REAL,
    price_date         TEXT,
    PRIMARY KEY (session_id, turn, number)
) WITHOUT ROWID;
CREATE INDEX calls_by_time ON calls (owner, opened_at);

CREATE TABLE tools (
    session_id TEXT NOT NULL,
    turn       INTEGER NOT NULL,
    idx        INTEGER NOT NULL,
    name       TEXT NOT NULL,
    effect     INTEGER NOT NULL,
    server     TEXT,
    status     TEXT NOT NULL CHECK (status IN ('started', 'done', 'error', 'unknown')),
    told       INTEGER,               -- the turn that tells of it: its own, or a later one
    PRIMARY KEY (session_id, turn, idx)
) WITHOUT ROWID;
CREATE INDEX tools_untold ON tools (session_id, turn, idx) WHERE effect AND told IS NULL;

CREATE TABLE egress (
    number          INTEGER PRIMARY KEY,
    session_id      TEXT NOT NULL,
    turn            INTEGER NOT NULL,
    owner           TEXT NOT NULL,
    at              REAL NOT NULL,
    destination     TEXT NOT NULL,
    slot            TEXT NOT NULL,
    route           TEXT,
    host            TEXT NOT NULL,
    path            TEXT NOT NULL,
    bytes_sent      INTEGER NOT NULL,
    allowed_because TEXT NOT NULL
);
CREATE INDEX egress_by_session ON egress (session_id);

CREATE TABLE budgets (
    scope        TEXT NOT NULL,
    window_start REAL NOT NULL,
    owner        TEXT NOT NULL,
    spent        INTEGER NOT NULL,
    PRIMARY KEY (scope, window_start, owner)
) WITHOUT ROWID;

CREATE TABLE reservations (
    reservation_id TEXT NOT NULL PRIMARY KEY,
    scope          TEXT NOT NULL,
    window_start   REAL NOT NULL,
    amount         INTEGER NOT NULL,
    owner          TEXT NOT NULL,
    holder         TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX reservations_by_scope ON reservations (scope, window_start);

CREATE TABLE chores (                 -- what is yet to be done, should the process die before
    name TEXT NOT NULL PRIMARY KEY
) WITHOUT ROWID;

CREATE TABLE audit (
    number   INTEGER PRIMARY KEY,
    at       REAL NOT NULL,
    owner    TEXT NOT NULL,
    action   TEXT NOT NULL,
    subject  TEXT NOT NULL,
    details  TEXT NOT NULL,
    previous TEXT NOT NULL,
    hash     TEXT NOT NULL
);
CREATE TRIGGER audit_stays BEFORE DELETE ON audit BEGIN
    SELECT RAISE (ABORT, 'the audit log is append-only');
END;
CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit BEGIN
    SELECT RAISE (ABORT, 'the audit log is append-only');
END;

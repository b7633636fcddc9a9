#!lua name=omnibus
-- What must happen in one step. Refusals begin with a word that omnibus.store reads: STALE, LED, TAKEN, ORPHAN, FULL.

-- Register what ends, frees or continues: it has to work on a server that has reached its maxmemory, too.
local function register_always(name, callback)
  redis.register_function { function_name = name, callback = callback, flags = { 'allow-oom' } }
end

-- A document as a table; an empty one when it cannot be read, for another build may have written it.
local function read(text)
  local fine, found = pcall(cjson.decode, text or '{}')
  return fine and type(found) == 'table' and found or {}
end

-- Epoch of the staged plan: 0 when there is none, or none that can be read.
local function staged_epoch(staged)
  return tonumber(read(redis.call('GET', staged) or nil).epoch) or 0
end

-- Only the newest epochs keep their plan, and the one that is pinned.
local function trim(history, plans, pinned, keep)
  for _, old in ipairs(redis.call('ZRANGE', history, 0, -(keep + 1))) do
    if old ~= pinned then
      redis.call('DEL', plans .. old)
      redis.call('ZREM', history, old)
    end
  end
end

redis.register_function('omnibus_swap_plan', function(keys, args)
  local current, plans, history, staged = keys[1], keys[2], keys[3], keys[4]
  local lead, pin, channel = keys[5], keys[6], keys[7]
  local epoch, body, after, keep = args[1], args[2], args[3], tonumber(args[4])
  local newest = math.max(tonumber(redis.call('GET', current) or '0'), staged_epoch(staged) - 1)
  if tonumber(epoch) <= newest then return redis.error_reply('STALE ' .. newest) end
  redis.call('ZADD', history, epoch, epoch)
  redis.call('SET', plans .. epoch, body)
  redis.call('SET', current, epoch)
  if after == '' then redis.call('DEL', staged, lead) else redis.call('SET', staged, after) end
  if args[5] == '1' then redis.call('SET', pin, epoch) end
  trim(history, plans, redis.call('GET', pin), keep)
  redis.call('PUBLISH', channel, epoch)
  return tonumber(epoch)
end)

-- Stage the plan that is to be current next. Whoever leads a change leads it as long as it says so in time.
redis.register_function('omnibus_stage_plan', function(keys, args)
  local current, staged, lead, channel = keys[1], keys[2], keys[3], keys[4]
  local epoch, body, owner, lasts = tonumber(args[1]), args[2], args[3], args[4]
  local waiting = staged_epoch(staged)
  local leader = redis.call('GET', lead)
  if waiting > 0 and leader and leader ~= owner then return redis.error_reply('LED ' .. leader) end
  local newest = math.max(tonumber(redis.call('GET', current) or '0'), waiting)
  if epoch <= newest then return redis.error_reply('STALE ' .. newest) end
  redis.call('SET', staged, body)
  redis.call('SET', lead, owner, 'PX', lasts)
  redis.call('PUBLISH', channel, args[1])
  return epoch
end)

register_always('omnibus_unstage_plan', function(keys, args)
  local staged, lead, channel = keys[1], keys[2], keys[3]
  local leader = redis.call('GET', lead)
  if redis.call('EXISTS', staged) == 0 or (leader and leader ~= args[1]) then return 0 end
  redis.call('DEL', staged, lead)
  redis.call('PUBLISH', channel, '0')
  return 1
end)

register_always('omnibus_lead_plan', function(keys, args)
  local leader = redis.call('GET', keys[1])
  if leader and leader ~= args[1] then return 0 end
  redis.call('SET', keys[1], args[1], 'PX', args[2])
  return 1
end)

register_always('omnibus_pin_plan', function(keys, args)
  local pin, plans, channel = keys[1], keys[2], keys[3]
  if args[1] == '0' then
    redis.call('DEL', pin)
  elseif redis.call('EXISTS', plans .. args[1]) == 0 then
    return 0
  else
    redis.call('SET', pin, args[1])
  end
  redis.call('PUBLISH', channel, '0')
  return 1
end)

-- Write the candidate for a model if the one before is as its writer knows it: "id state", or empty for none.
redis.register_function('omnibus_put_candidate', function(keys, args)
  local candidates, channel = keys[1], keys[2]
  local model, expected, body = args[1], args[2], args[3]
  local text = redis.call('HGET', candidates, model)
  local before = ''
  if text then
    local found = read(text)
    before = tostring(found.id) .. ' ' .. tostring(found.state or 'shadow')
  end
  if before ~= expected then return redis.error_reply('STALE ' .. before) end
  redis.call('HSET', candidates, model, body)
  redis.call('PUBLISH', channel, model)
  return 1
end)

local function source_of(record)
  local source = type(record.source) == 'table' and record.source.sha256
  return type(source) == 'string' and source or ''
end

-- Version of a stored record: 0 when there is none, -1 when it cannot be read.
local function version(text)
  return text and (tonumber(read(text).version) or -1) or 0
end

-- Remove a source that no app refers to any more.
local function sweep(apps, sources, source)
  if source == '' then return end
  for _, text in ipairs(redis.call('HVALS', apps)) do
    if source_of(read(text)) == source then return end
  end
  redis.call('DEL', sources .. source)
end

local function taken(apps, name, record)
  if type(record.route) ~= 'string' or record.route == '' then return nil end
  local all = redis.call('HGETALL', apps)
  for at = 1, #all, 2 do
    local other = read(all[at + 1])
    if all[at] ~= name and other.route == record.route and other.model == record.model then return all[at] end
  end
  return nil
end

redis.register_function('omnibus_put_app', function(keys, args)
  local apps, life, channel, sources = keys[1], keys[2], keys[3], keys[4]
  local name, expected, text = args[1], tonumber(args[2]), args[3]
  local before = redis.call('HGET', apps, name)
  if version(before) ~= expected then return redis.error_reply('STALE ' .. version(before)) end
  local record = read(text)
  local other = taken(apps, name, record)
  if other then return redis.error_reply('TAKEN ' .. other) end
  local source = source_of(record)
  if source ~= '' and redis.call('EXISTS', sources .. source) == 0 then return redis.error_reply('ORPHAN') end
  redis.call('HSET', apps, name, text)
  redis.call('SET', life, args[4], 'NX')
  if source ~= '' then redis.call('PERSIST', sources .. source) end
  sweep(apps, sources, source_of(read(before)))
  redis.call('PUBLISH', channel, name)
  return 1
end)

register_always('omnibus_drop_app', function(keys, args)
  local apps, channel, sources = keys[1], keys[2], keys[3]
  local before = redis.call('HGET', apps, args[1])
  if not before then return 0 end
  if args[2] ~= 'any' and version(before) ~= tonumber(args[2]) then
    return redis.error_reply('STALE ' .. version(before))
  end
  redis.call('HDEL', apps, args[1])
  sweep(apps, sources, source_of(read(before)))
  redis.call('PUBLISH', channel, args[1])
  return 1
end)

-- A source that no app refers to yet expires; one that is in use stays as it is.
redis.register_function('omnibus_put_source', function(keys, args)
  if redis.call('PTTL', keys[1]) ~= -1 then redis.call('SET', keys[1], args[1], 'EX', args[2]) end
  return 1
end)

-- Jobs. Keys of all these functions: who came when, who is due when, who is forgotten when (sets sorted by
-- milliseconds), the beginning of the jobs' own keys, the channel, those that were removed (until when that is
-- remembered), a random word that is another one once the server has lost everything.

-- Milliseconds that a removed job is remembered: longer than any gateway is away and still knows it.
local REMOVED_MS = 3600000

local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function whole(number)
  return string.format('%.0f', number)
end

local function forget(keys, id)
  for set = 1, 3 do redis.call('ZREM', keys[set], id) end
  return redis.call('DEL', keys[4] .. id)
end

local function forget_old(keys, time)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', keys[3], '-inf', whole(time))) do forget(keys, id) end
  redis.call('ZREMRANGEBYSCORE', keys[6], '-inf', whole(time))
end

-- How many members of a set of jobs are of a tenant, and of how many tenants all members are, this one included.
local function count_of(keys, set, tenant)
  local counts, tenants = { [tenant] = 0 }, 1
  for _, id in ipairs(redis.call('ZRANGE', keys[set], 0, -1)) do
    local name = redis.call('HGET', keys[4] .. id, 'tenant') or ''
    if not counts[name] then counts[name], tenants = 0, tenants + 1 end
    counts[name] = counts[name] + 1
  end
  return counts[tenant], tenants
end

-- The first limit that one more job of a tenant would break. A limit of 0 is none. When all places are taken, a tenant
-- with less than an equal part of them still gets one.
local function limit_reached(keys, tenant, open, kept, tenant_open, tenant_kept)
  for _, each in ipairs({ { 2, 'open', open, tenant_open }, { 1, 'kept', kept, tenant_kept } }) do
    local set, name, most, most_of_tenant = each[1], each[2], tonumber(each[3]), tonumber(each[4])
    local own, tenants = count_of(keys, set, tenant)
    if redis.call('ZCARD', keys[set]) >= most and own >= math.floor(most / tenants) then return name end
    if most_of_tenant > 0 and own >= most_of_tenant then return 'tenant_' .. name end
  end
  return nil
end

-- Write all fields of a job; it is due at a time unless it is over.
local function write(keys, id, expires, due, fields)
  local job = keys[4] .. id
  redis.call('HSET', job, unpack(fields))
  redis.call('PEXPIREAT', job, expires)
  redis.call('ZADD', keys[1], redis.call('HGET', job, 'created'), id)
  redis.call('ZADD', keys[3], expires, id)
  redis.call('ZREM', keys[2], id)
  if due then redis.call('ZADD', keys[2], whole(due), id) end
  redis.call('PUBLISH', keys[5], id)
end

local function over(status)
  return status == 'completed' or status == 'failed'
end

-- Open jobs are those that are due some time; a job that is held is due when its holder is silent.
redis.register_function('omnibus_put_job', function(keys, args)
  local id, expires = args[1], args[2]
  local time = now()
  forget_old(keys, time)
  if redis.call('EXISTS', keys[4] .. id) == 1 or tonumber(expires) <= time then return 0 end
  local limit = limit_reached(keys, args[3], args[4], args[5], args[6], args[7])
  if limit then return redis.error_reply('FULL ' .. limit) end
  write(keys, id, expires, time, { unpack(args, 8) })
  return 1
end)

-- Write a job that somebody remembers and the server may have lost. Of two states of one job the later one wins; one
-- that was removed stays so. With an owner it is held again by that one, if nobody else took it meanwhile: it may have
-- said so twice.
redis.register_function('omnibus_restore_job', function(keys, args)
  local id, expires, lease, owner, status, attempt = args[1], args[2], tonumber(args[3]), args[4], args[5], args[6]
  local job, time = keys[4] .. id, now()
  forget_old(keys, time)
  if redis.call('ZSCORE', keys[6], id) or tonumber(expires) <= time then return 0 end
  local there = redis.call('HMGET', job, 'status', 'attempt', 'owner')
  if there[1] then
    if over(there[1]) then return 0 end
    if not over(status) then
      if (there[3] ~= '' and there[3] ~= owner) or tonumber(there[2]) > tonumber(attempt) then return 0 end
      if owner == '' and there[2] == attempt then return 0 end
    end
  end
  local due = nil
  if not over(status) then due = time + lease end
  write(keys, id, expires, due, { unpack(args, 7) })
  return 1
end)

-- What there is, for one who remembers some jobs: the word of this server's life; then id, status, attempt and end of
-- the newest jobs; then which of the remembered ones were removed, and which are lost.
register_always('omnibus_review_jobs', function(keys, args)
  forget_old(keys, now())
  redis.call('SET', keys[7], args[1], 'NX')
  local states, removed, lost = {}, {}, {}
  for _, id in ipairs(redis.call('ZRANGE', keys[1], 0, tonumber(args[2]) - 1, 'REV')) do
    local job = redis.call('HMGET', keys[4] .. id, 'status', 'attempt', 'ended')
    if job[1] then
      for _, each in ipairs({ id, job[1], job[2], job[3] }) do table.insert(states, each) end
    end
  end
  for at = 3, #args do
    if redis.call('ZSCORE', keys[6], args[at]) then
      table.insert(removed, args[at])
    elseif redis.call('EXISTS', keys[4] .. args[at]) == 0 then
      table.insert(lost, args[at])
    end
  end
  return { redis.call('GET', keys[7]), states, removed, lost }
end)

-- The jobs that are due, the jobs at work by tenant, and when the next job may be due.
local function survey_jobs(keys, time)
  local due, working, next = {}, {}, nil
  local all = redis.call('ZRANGE', keys[2], 0, -1, 'WITHSCORES')
  for at = 1, #all, 2 do
    local id, when = all[at], tonumber(all[at + 1])
    local job = redis.call('HMGET', keys[4] .. id, 'tenant', 'owner')
    local tenant = job[1] or ''
    if redis.call('EXISTS', keys[4] .. id) == 0 then
      forget(keys, id) -- the server was short of memory, or somebody has removed it by hand
    elseif when <= time then
      table.insert(due, { id = id, tenant = tenant })
    else
      next = next or when
      if (job[2] or '') ~= '' then working[tenant] = (working[tenant] or 0) + 1 end
    end
  end
  return due, working, next
end

-- The job that comes first of the tenant with the fewest jobs at work; of several such tenants the one whose turn was
-- longest ago.
local function choose_job(keys, due, working)
  local best, best_count, best_turn
  for _, job in ipairs(due) do
    local count = working[job.tenant] or 0
    local turn = tonumber(redis.call('ZSCORE', keys[8], job.tenant) or '0')
    if not best or count < best_count or (count == best_count and turn < best_turn) then
      best, best_count, best_turn = job, count, turn
    end
  end
  local last = redis.call('ZRANGE', keys[8], -1, -1, 'WITHSCORES')[2]
  redis.call('ZADD', keys[8], (tonumber(last) or 0) + 1, best.tenant)
  redis.call('PEXPIRE', keys[8], 86400000)
  return best.id
end

register_always('omnibus_take_job', function(keys, args)
  local time = now()
  forget_old(keys, time)
  local due, working, next = survey_jobs(keys, time)
  if #due == 0 then return next and next - time or 3600000 end
  local id = choose_job(keys, due, working)
  local job = keys[4] .. id
  local before = redis.call('HMGET', job, 'owner', 'silent')
  if (before[1] or '') ~= '' then -- it fell silent, and may still say that the job was not why
    redis.call('HSET', job, 'silent', (before[2] or '') .. ' ' .. before[1])
  end
  redis.call('HSET', job, 'status', 'in_progress', 'owner', args[1], 'progress', '0')
  redis.call('HINCRBY', job, 'attempt', 1)
  redis.call('ZADD', keys[2], whole(time + args[2]), id)
  local found = redis.call(
    'HMGET', job, 'request', 'created', 'until', 'status', 'progress', 'attempt', 'faults', 'silent', 'ended', 'outcome',
    'trace', 'tenant', 'key')
  table.insert(found, 1, id)
  table.insert(found, redis.call('PEXPIRETIME', job))
  return found
end)

-- Whether a job of another tenant is due that has fewer jobs at work than the tenant args[1].
register_always('omnibus_job_waits', function(keys, args)
  local due, working = survey_jobs(keys, now())
  for _, job in ipairs(due) do
    if job.tenant ~= args[1] and (working[job.tenant] or 0) < (working[args[1]] or 0) then return 1 end
  end
  return 0
end)

local function lost(keys, args)
  return redis.call('HGET', keys[4] .. args[1], 'owner') ~= args[2]
end

register_always('omnibus_hold_job', function(keys, args)
  if lost(keys, args) then return 0 end
  redis.call('HSET', keys[4] .. args[1], 'progress', args[4], 'trace', args[5])
  redis.call('ZADD', keys[2], whole(now() + args[3]), args[1])
  return 1
end)

-- Take an owner out of those that fell silent: it lives, so the job did not end it.
local function excuse(job, owner)
  local silent = redis.call('HGET', job, 'silent')
  if not silent then return end
  local others = {}
  for each in string.gmatch(silent, '%S+') do
    if each ~= owner then table.insert(others, each) end
  end
  redis.call('HSET', job, 'silent', table.concat(others, ' '))
end

register_always('omnibus_free_job', function(keys, args)
  local job = keys[4] .. args[1]
  if lost(keys, args) then
    if args[4] == '0' then excuse(job, args[2]) end
    return 0
  end
  redis.call('HSET', job, 'status', 'queued', 'owner', '', 'progress', '0', 'trace', '')
  redis.call('HINCRBY', job, 'faults', args[4])
  redis.call('ZADD', keys[2], whole(now() + args[3]), args[1])
  redis.call('PUBLISH', keys[5], args[1])
  return 1
end)

register_always('omnibus_end_job', function(keys, args)
  if lost(keys, args) then return 0 end
  local id, job, time = args[1], keys[4] .. args[1], now()
  redis.call('HSET', job, 'status', args[3], 'outcome', args[4], 'ended', whole(time), 'owner', '', 'trace', '')
  if args[3] == 'completed' then redis.call('HSET', job, 'progress', '100') end
  redis.call('ZREM', keys[2], id)
  redis.call('ZADD', keys[3], whole(time + args[5]), id)
  redis.call('PEXPIREAT', job, whole(time + args[5]))
  redis.call('PUBLISH', keys[5], id)
  return 1
end)

-- Remove a job, and remember that, so that nobody who knows it writes it again.
register_always('omnibus_drop_job', function(keys, args)
  redis.call('ZADD', keys[6], whole(now() + REMOVED_MS), args[1])
  if forget(keys, args[1]) == 0 then return 0 end
  redis.call('PUBLISH', keys[5], args[1])
  return 1
end)

-- Many values that are kept for as long, in milliseconds: one command to read and one answer for all of them.
redis.register_function('omnibus_put_values', function(keys, args)
  for index, key in ipairs(keys) do
    redis.call('SET', key, args[index + 1], 'PX', args[1])
  end
  return #keys
end)

-- Make args[1] the holder of a stored response that args[2] held. Answers the number of its holders so far; 0: somebody
-- else has it, or it has ended.
register_always('omnibus_claim_response', function(keys, args)
  local found = redis.call('HMGET', keys[1], 'record', 'holder', 'final')
  if not found[1] or found[3] or (found[2] or '') ~= args[2] then return 0 end
  redis.call('HSET', keys[1], 'holder', args[1])
  return redis.call('HINCRBY', keys[1], 'attempt', 1)
end)

#!lua name=omnibus
-- What must happen in one step. Refusals begin with a word that omnibus.store reads: STALE, TAKEN, ORPHAN.

redis.register_function('omnibus_swap_plan', function(keys, args)
  local current = tonumber(redis.call('GET', keys[1]) or '0')
  local epoch = tonumber(args[1])
  if epoch <= current then return redis.error_reply('STALE ' .. current) end
  redis.call('SET', keys[2], args[2])
  redis.call('ZADD', keys[3], epoch, args[1])
  redis.call('SET', keys[1], args[1])
  redis.call('PUBLISH', keys[4], args[1])
  return epoch
end)

-- A record as a table; an empty one when it cannot be read, for another build may have written it.
local function read(text)
  local fine, found = pcall(cjson.decode, text or '{}')
  return fine and type(found) == 'table' and found or {}
end

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

redis.register_function('omnibus_drop_app', function(keys, args)
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

# frozen_string_literal: true

# ruby tests/rails_uploads.rb FOLDER: real ActiveStorage and ActiveRecord upload through
# examples/rails/blobgc_service.rb, and what was seen is printed as JSON. PG* name the database.

require "logger"
require "active_record"
require "active_storage"
require "active_storage/service/disk_service"
require "json"
require "stringio"
require "fileutils"

FOLDER = ARGV.fetch(0)
# As in lib/ of an application: ActiveStorage finds a service by the name of its file.
SERVICES = File.join(FOLDER, "lib", "active_storage", "service")
FileUtils.mkdir_p(SERVICES)
FileUtils.cp(File.join(__dir__, "..", "examples", "rails", "blobgc_service.rb"), SERVICES)
FileUtils.touch(File.join(SERVICES, "watched_service.rb"))
$LOAD_PATH.unshift(File.join(FOLDER, "lib"))
ActiveRecord::Base.establish_connection(
  adapter: "postgresql", host: ENV.fetch("PGHOST"), port: ENV.fetch("PGPORT"),
  username: ENV.fetch("PGUSER"), database: ENV.fetch("PGDATABASE"), pool: 3)

def other(statement)
  connection = PG.connect
  connection.exec(statement).values
ensure
  connection.close
end

# What the store does, watched from another session.
class ActiveStorage::Service::WatchedService < ActiveStorage::Service::DiskService
  class << self
    attr_accessor :seen, :fails
  end

  def upload(key, io, **options)
    self.class.seen = other("select url from gc.holds")
    raise "the disk is full" if self.class.fails

    super
  end
end
Watched = ActiveStorage::Service::WatchedService

service = ActiveStorage::Service::Configurator.build(:announced, {
  disk: { service: "Watched", root: File.join(FOLDER, "store") },
  announced: { service: "Blobgc", storage: "disk", collection: "active_storage_blobs",
               prefix: "s3://bucket/" }
})
said = {}

# In a transaction that has not committed, as in a request.
ActiveRecord::Base.transaction do
  ActiveRecord::Base.connection.execute("select 1")
  service.upload("one", StringIO.new("x"))
end
said[:seen] = Watched.seen
said[:left] = other("select count(*) from gc.holds")
said[:read] = service.download("one")
said[:exists] = service.exist?("one")

Watched.fails = true
begin
  service.upload("two", StringIO.new("x"))
rescue RuntimeError => error
  said[:failed] = error.message
end
said[:left_after_failure] = other("select count(*) from gc.holds")
Watched.fails = false

# The object of a deleted row is leased to a worker.
begin
  Watched.seen = nil
  service.upload("gone", StringIO.new("x"))
rescue PG::Error => error
  said[:refused] = error.result.error_field(PG::PG_DIAG_SQLSTATE)
end
said[:written] = Watched.seen

puts JSON.generate(said)

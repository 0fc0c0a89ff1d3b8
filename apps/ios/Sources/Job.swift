// The documents of apps/CONTRACT.md as values.

import Foundation

/// What failed; the names and exit codes of the contract.
enum Stage: String, Codable {
    case job, library, model, prepare, input, invoke, output

    var exitCode: Int32 {
        switch self {
        case .job: return 10
        case .library: return 11
        case .model: return 12
        case .prepare: return 13
        case .input: return 14
        case .invoke: return 15
        case .output: return 16
        }
    }
}

/// A failure with the stage where it happened.
struct Failure: Error {
    let stage: Stage
    let message: String

    init(_ stage: Stage, _ message: String) {
        self.stage = stage
        self.message = message
    }
}

struct TensorFile: Codable {
    let name: String
    let dtype: String
    let shape: [Int]
    let file: String
}

struct TensorSpec: Codable {
    let name: String
    let dtype: String
    let shape: [Int]
}

struct Job: Decodable {
    let schema: Int
    let runtime: String
    let artifact: String
    let samples: [[TensorFile]]
    let outputs: [TensorSpec]
    let accelerator: String
    let warmupRuns: Int
    let minRuns: Int
    let maxSeconds: Double
    let runtimeNames: [String: String]
    let stateFrom: [String: String]
    let options: [String: String]

    enum CodingKeys: String, CodingKey {
        case schema, runtime, artifact, samples, outputs, accelerator, options
        case warmupRuns = "warmup_runs"
        case minRuns = "min_runs"
        case maxSeconds = "max_seconds"
        case runtimeNames = "runtime_names"
        case stateFrom = "state_from"
    }

    init(from decoder: Decoder) throws {
        let values = try decoder.container(keyedBy: CodingKeys.self)
        schema = try values.decodeIfPresent(Int.self, forKey: .schema) ?? 1
        runtime = try values.decode(String.self, forKey: .runtime)
        artifact = try values.decode(String.self, forKey: .artifact)
        samples = try values.decode([[TensorFile]].self, forKey: .samples)
        outputs = try values.decode([TensorSpec].self, forKey: .outputs)
        accelerator = try values.decodeIfPresent(String.self, forKey: .accelerator) ?? "cpu"
        warmupRuns = try values.decodeIfPresent(Int.self, forKey: .warmupRuns) ?? 10
        minRuns = try values.decodeIfPresent(Int.self, forKey: .minRuns) ?? 100
        maxSeconds = try values.decodeIfPresent(Double.self, forKey: .maxSeconds) ?? 5
        runtimeNames = try values.decodeIfPresent([String: String].self, forKey: .runtimeNames) ?? [:]
        stateFrom = try values.decodeIfPresent([String: String].self, forKey: .stateFrom) ?? [:]
        options = try values.decodeIfPresent([String: String].self, forKey: .options) ?? [:]
    }

    /// Read and check `job.json`.
    static func read(_ folder: URL) throws -> Job {
        let job: Job
        do {
            let data = try Data(contentsOf: folder.appendingPathComponent("job.json"))
            guard data.count <= 16 << 20 else { throw Failure(.job, "job.json has \(data.count) bytes, more than 16 MiB") }
            job = try JSONDecoder().decode(Job.self, from: data)
        } catch let failure as Failure {
            throw failure
        } catch {
            throw Failure(.job, "job.json: \(error)")
        }
        try job.check()
        return job
    }

    private func check() throws {
        guard schema == 1 else { throw Failure(.job, "schema \(schema), and this executor knows 1") }
        guard (1...100_000).contains(samples.count) else { throw Failure(.job, "\(samples.count) samples") }
        guard (1...256).contains(outputs.count) else { throw Failure(.job, "\(outputs.count) outputs") }
        guard (0...1_000_000).contains(warmupRuns), (0...1_000_000).contains(minRuns) else { throw Failure(.job, "warm-up or runs out of range") }
        guard (0...86_400).contains(maxSeconds) else { throw Failure(.job, "max_seconds \(maxSeconds)") }
        for sample in samples where sample.count > 256 { throw Failure(.job, "a sample of \(sample.count) inputs") }
        for tensor in samples.joined() where tensor.shape.count > 8 || tensor.shape.contains(where: { $0 < 0 }) {
            throw Failure(.job, "\(tensor.name) has the shape \(tensor.shape)")
        }
        guard runtime == "coreml" else { throw Failure(.library, "this app runs coreml, not \(runtime)") }
        if let option = options.keys.first(where: { $0 != "match" }) { throw Failure(.prepare, "coreml has no option \(option)") }
        if let kind = options["match"], kind != "name" { throw Failure(.prepare, "Core ML matches by name, not by \(kind)") }
    }
}

/// A path of the job, inside its folder.
func inside(_ folder: URL, _ name: String, _ stage: Stage) throws -> URL {
    let parts = name.split(separator: "/", omittingEmptySubsequences: false)
    guard !name.isEmpty, !name.hasPrefix("/"), !parts.contains(".."), !name.contains("\\"), !name.contains("\0") else {
        throw Failure(stage, "the path \(name) leaves the folder")
    }
    let full = folder.appendingPathComponent(name).resolvingSymlinksInPath()
    guard full.path.hasPrefix(folder.resolvingSymlinksInPath().path + "/") else { throw Failure(stage, "the path \(name) leaves the folder") }
    return full
}

/// What happened; written last, by rename.
struct RunResult: Encodable {
    var schema = 1
    var status = "failed"
    var stage: Stage?
    var error = ""
    var runtime = "coreml"
    var runtimeVersion = ""
    var runnerVersion = "edgekit ios 1"
    var outputs: [[TensorFile]] = []
    var libraryNs: Int?
    var loadColdNs: Int?
    var loadWarmNs: Int?
    var sampleNs: [Int] = []
    var warmupNs: [Int] = []
    var latencyNs: [Int] = []
    var peakMemoryBytes: Int?
    var counters: [String: Int] = [:]
    var delegation: Delegation?

    enum CodingKeys: String, CodingKey {
        case schema, status, stage, error, runtime, outputs, counters, delegation
        case runtimeVersion = "runtime_version"
        case runnerVersion = "runner_version"
        case libraryNs = "library_ns"
        case loadColdNs = "load_cold_ns"
        case loadWarmNs = "load_warm_ns"
        case sampleNs = "sample_ns"
        case warmupNs = "warmup_ns"
        case latencyNs = "latency_ns"
        case peakMemoryBytes = "peak_memory_bytes"
    }

    func write(_ folder: URL) throws {
        let encoder = JSONEncoder()
        encoder.outputFormatting = [.prettyPrinted, .sortedKeys]
        let part = folder.appendingPathComponent(".result.json.part")
        try encoder.encode(self).write(to: part)
        try FileManager.default.moveItem(at: part, to: folder.appendingPathComponent("result.json"))
    }
}

/// Where the operators of the program were placed, as Core ML's compute plan says.
struct Delegation: Encodable {
    let delegate: String
    let nodes: Int
    let total: Int
    let partitions: Int
    let operators: [String]
    let fallback: [String]
}

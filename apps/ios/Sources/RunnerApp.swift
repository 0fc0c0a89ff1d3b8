// The app around the runner: `--job FOLDER --result FOLDER`, both inside Documents on a phone, run once and exit.

import Foundation
#if os(iOS)
import SwiftUI
import UIKit
#endif

private func argument(_ name: String) -> String? {
    let arguments = ProcessInfo.processInfo.arguments
    guard let at = arguments.firstIndex(of: name), at + 1 < arguments.count else { return nil }
    return arguments[at + 1]
}

/// Removes the folders of earlier runs: not every tool that brings jobs can.
private func clear(_ runs: URL, but current: String) {
    for name in (try? FileManager.default.contentsOfDirectory(atPath: runs.path)) ?? [] where name != current {
        try? FileManager.default.removeItem(at: runs.appendingPathComponent(name))
    }
}

private func folders() -> (URL, URL)? {
    guard let job = argument("--job"), let result = argument("--result") else { return nil }
    #if os(iOS)
    let documents = FileManager.default.urls(for: .documentDirectory, in: .userDomainMask)[0]
    guard let from = try? inside(documents, job, .job), let to = try? inside(documents, result, .job) else { return nil }
    try? FileManager.default.createDirectory(at: to, withIntermediateDirectories: true)
    clear(documents.appendingPathComponent("edgekit"), but: from.deletingLastPathComponent().lastPathComponent)
    return (from, to)
    #else
    return (URL(fileURLWithPath: job), URL(fileURLWithPath: result))
    #endif
}

#if os(iOS)
@main
struct RunnerApp: App {
    @State private var said = "Waiting for a job from edgekit."

    var body: some Scene {
        WindowGroup {
            Text(said).padding().task {
                guard let (job, result) = folders() else { return }
                UIApplication.shared.isIdleTimerDisabled = true
                said = "Running \(job.lastPathComponent)"
                let code = await Task.detached(priority: .userInitiated) { execute(job: job, result: result) }.value
                exit(code)
            }
        }
    }
}
#else
@main
struct CommandLineRunner {
    static func main() {
        guard let (job, result) = folders() else {
            FileHandle.standardError.write(Data("usage: edgekit-coreml --job FOLDER --result FOLDER\n".utf8))
            exit(2)
        }
        exit(execute(job: job, result: result))
    }
}
#endif
